"""A kind of script, and its draft.

`Kind`: what a kind is: a way in which people write scripts that went wrong once, or that is odd enough to go wrong.
One kind is written into a plain script, so that a difference has one cause.

`draw_kind` draws the script that a kind is written into: plain data parallelism by hand, a small model, and a few
habits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from deadpool.errors import ConfigError
from deadpool_lab.strangers.builder import ScriptBuilder, Write, choose, pick, sprinkle
from deadpool_lab.strangers.features.by_hand import BY_HAND
from deadpool_lab.strangers.features.data import DATA
from deadpool_lab.strangers.features.loop_styles import COLLECTIVES, LOOP_STYLES
from deadpool_lab.strangers.features.models import MODELS, write_seeds
from deadpool_lab.strangers.features.optimizers import OPTIMIZERS

Expected = Literal["exact", "named"]
"""What has to follow a fault: the same to the bit; or DeadPool may have named, before the fault, the rule that the
script breaks.
"""

Victims = Literal["any", "rank 0", "other nodes"]
"""Who is hit: any rank, rank 0, or a rank on another node than rank 0's."""

_MOMENTS = ("forward", "backward", "reduce", "optimizer", "between", "capture", "wire")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """`write` comes last, when model, batches and optimizer are drawn. `brings` names what it brings itself:
    "own_model", "own_data", "own_reduce", "own_optimizer"; with "alone" no habit is added. `keeps` are patterns of
    files, relative to the script's output folder, that a fault must not cost. With `rules` the kind may differ after a
    fault, or lose such files, if one of these rules was named before it; no other rule excuses it."""

    name: str
    about: str
    write: Write
    rules: tuple[str, ...] = ()
    brings: frozenset[str] = frozenset()
    moments: tuple[str, ...] = _MOMENTS
    victims: Victims = "any"
    keeps: tuple[str, ...] = ()
    stops: bool = False  # half of these scripts have a trainer stopped (SIGSTOP), too
    real_torchrun: bool = False  # the forked launcher waits for a process that ends in a way of its own

    @property
    def expected(self) -> Expected:
        """Rules that only excuse the loss of files leave the computation exact."""
        return "named" if self.rules and not self.keeps else "exact"


def kind_named(kinds: Sequence[Kind], name: str) -> Kind:
    for kind in kinds:
        if kind.name == name:
            return kind
    raise ConfigError(f"kind={name!r} cannot be used: give all or one of {', '.join(kind.name for kind in kinds)}")


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
