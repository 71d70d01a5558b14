"""Draws the script that a kind is written into: plain data parallelism by hand, a small model, and a few habits."""

from __future__ import annotations

from deadpool_lab.strangers.builder import ScriptBuilder
from deadpool_lab.strangers.feature import choose, pick, sprinkle
from deadpool_lab.strangers.features.by_hand import BY_HAND
from deadpool_lab.strangers.features.collectives import COLLECTIVES
from deadpool_lab.strangers.features.data import DATA
from deadpool_lab.strangers.features.loop_styles import LOOP_STYLES
from deadpool_lab.strangers.features.models import MODELS
from deadpool_lab.strangers.features.optimizers import OPTIMIZERS
from deadpool_lab.strangers.features.seeds import write_seeds
from deadpool_lab.strangers.kind import Kind

_MODELS = pick(MODELS, "MLP", "dropout", "batch norm", "activation checkpointing")
_DATA = pick(
    DATA,
    *("batches from torch's RNG", "batches from numpy's RNG", "batches from python's RNG", "batches by step number"),
    *("a stream with a position", "a torch.Generator of its own", "numpy's and python's generators"),
)
_REDUCE = pick(BY_HAND, "all-reduce each gradient", "async handles", "flat bucket", "reduce and broadcast")
_OPTIMIZERS = pick(OPTIMIZERS, "SGD nesterov", "Adam", "AdamW foreach", "AdamW fused", "RMSprop")
_HABITS = [
    *pick(LOOP_STYLES, "evaluation in a step", "on_final", "checkpoints", "logging", "a thread of its own", "fork_rng"),
    *pick(COLLECTIVES, "all_gather_object", "broadcast_object_list", "barrier", "async min and all_gather"),
]


def draw_kind(builder: ScriptBuilder, kind: Kind) -> None:
    rng = builder.rng
    builder.tag(f"{kind.name}: {kind.about}")
    builder.width, builder.batch = rng.choice([8, 16]), rng.choice([4, 6])
    builder.flat = rng.random() < 0.3
    builder.traits |= {"by_hand", "whole_model", *kind.brings}
    for brought, family in (("own_model", _MODELS), ("own_data", _DATA), ("own_reduce", _REDUCE)):
        if brought not in kind.brings:
            choose(builder, family)
    write_seeds(builder)
    if "own_optimizer" not in kind.brings:
        choose(builder, _OPTIMIZERS)
    kind.write(builder)
    if "alone" not in kind.brings:
        sprinkle(builder, _HABITS)
