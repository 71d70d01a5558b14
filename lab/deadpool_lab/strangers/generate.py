"""Draws a script: the same seed and number give the same text."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from deadpool_lab.strangers.builder import Feature, ScriptBuilder, Shape, choose, script_text, sprinkle
from deadpool_lab.strangers.features.by_hand import APART, BY_HAND
from deadpool_lab.strangers.features.data import DATA, LOADERS
from deadpool_lab.strangers.features.data_parallel import DATA_PARALLEL, PIPELINES, SHARDED, write_pipeline
from deadpool_lab.strangers.features.loop_styles import COLLECTIVES, LOOP_STYLES
from deadpool_lab.strangers.features.models import LOSSES, MODELS, write_seeds
from deadpool_lab.strangers.features.optimizers import CLIPPING, OPTIMIZERS, SCHEDULES, write_closure
from deadpool_lab.strangers.features.precision import AVERAGES, PRECISION
from deadpool_lab.strangers.features.refused import REFUSED
from deadpool_lab.strangers.kind import Kind, draw_kind, kind_named
from deadpool_lab.strangers.kinds import KINDS

_KIND_EVERY = 3  # so that the numbers between draw what they always have
_KINDS_PER_SEED = 34  # of 100 scripts: three seeds in a row go through all kinds
_KIND_SHAPES = [(2, 1), (3, 1), (2, 2), (4, 1), (3, 1)]
_SHAPES = [(2, 1), (3, 1), (2, 2), (5, 1), (3, 2), (2, 3), (4, 1), (3, 1)]
_LAYOUTS = [(BY_HAND, 3), (APART, 2), (DATA_PARALLEL, 3), (SHARDED, 3), (PIPELINES, 0.6)]
_REFUSED_SHARE = 0.06
FAMILIES: tuple[list[Feature], ...] = (
    BY_HAND,
    APART,
    DATA_PARALLEL,
    SHARDED,
    PIPELINES,
    LOSSES,
    REFUSED,
    MODELS,
    DATA,
    LOADERS,
    OPTIMIZERS,
    SCHEDULES,
    CLIPPING,
    PRECISION,
    AVERAGES,
    LOOP_STYLES,
    COLLECTIVES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A generated script. `refused` is the reason with which DeadPool refuses it; empty: its result has to be exact,
    or what its `kind` says."""

    seed: int
    number: int
    shape: Shape
    steps: int
    text: str
    tags: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)
    refused: str = ""
    clips: bool = False
    skips_errors: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    kind: Kind | None = None

    @property
    def title(self) -> str:
        return f"{self.seed}-{self.number}" + (f"-{self.kind.name}" if self.kind else "")

    @property
    def command(self) -> str:
        """The command that tries this script again. It names the kind, as another kind more changes which one a number
        draws.
        """
        kind = f" --kind {self.kind.name}" if self.kind else ""
        return f"deadpool lab chaos --strangers 1{kind} --seed {self.seed} --only {self.number}"


def generate(seed: int, number: int, kind: str = "") -> Script:
    """Generates a script, with `kind` one of this kind; "all" takes the kinds in turn."""
    if kind:
        return _of_kind(seed, number, KINDS[number % len(KINDS)] if kind == "all" else kind_named(KINDS, kind))
    if number % _KIND_EVERY == 0:
        return _of_kind(seed, number, KINDS[(_KINDS_PER_SEED * seed + number // _KIND_EVERY) % len(KINDS)])
    rng = random.Random(f"stranger {seed} {number}")
    nodes, per_node = rng.choice(_SHAPES)
    builder = ScriptBuilder(rng, Shape(nodes=nodes, per_node=per_node), steps=rng.randint(8, 14))
    _draw(builder)
    return _script(builder, seed, number)


def _of_kind(seed: int, number: int, kind: Kind) -> Script:
    rng = random.Random(f"kind {kind.name} {seed} {number}")
    nodes, per_node = rng.choice(_KIND_SHAPES)
    builder = ScriptBuilder(rng, Shape(nodes=nodes, per_node=per_node), steps=rng.randint(12, 15))
    draw_kind(builder, kind)
    return _script(builder, seed, number, kind)


def _script(builder: ScriptBuilder, seed: int, number: int, kind: Kind | None = None) -> Script:
    return Script(
        seed=seed,
        number=number,
        shape=builder.shape,
        steps=builder.steps,
        text=script_text(builder, f"Stranger {number} of seed {seed}: {', '.join(builder.tags)}."),
        tags=tuple(builder.tags),
        files=builder.files,
        refused=builder.refused,
        clips="clips" in builder.traits,
        skips_errors=builder.skips_errors,
        environment=builder.environment,
        kind=kind,
    )


def _draw(builder: ScriptBuilder) -> None:
    rng = builder.rng
    builder.width, builder.batch = rng.choice([8, 12, 16]), rng.choice([4, 6])
    builder.flat = rng.random() < 0.3
    builder.backend = rng.choice(["gloo", "cpu:gloo"])
    families, weights = zip(*_LAYOUTS, strict=True)
    choose(builder, rng.choices(families, weights)[0])
    if "own_model" not in builder.traits:
        choose(builder, MODELS)
    write_seeds(builder)
    choose(builder, LOADERS if rng.random() < 0.35 else DATA)
    _share_batches(builder)
    choose(builder, OPTIMIZERS)
    _accumulate(builder)
    sprinkle(builder, CLIPPING)
    choose(builder, SCHEDULES)
    choose(builder, PRECISION)
    choose(builder, LOSSES)
    choose(builder, AVERAGES)
    sprinkle(builder, LOOP_STYLES)
    sprinkle(builder, COLLECTIVES)
    if "closure" in builder.traits:
        write_closure(builder)
    if "pipeline" in builder.traits:
        write_pipeline(builder)
    if rng.random() < _REFUSED_SHARE:
        choose(builder, REFUSED)


def _share_batches(builder: ScriptBuilder) -> None:
    """Ranks that compute one model together get the same batch."""
    if "same_batches" in builder.traits:
        builder.fetch.append("dist.broadcast(x, src=0)\ndist.broadcast(y, src=0)")
    if "pairs_share_batches" in builder.traits:
        builder.fetch.append(
            'for tensor in (x, y):\n    dist.broadcast(tensor, group_src=0, group=mesh["tensor"].get_group())'
        )


def _accumulate(builder: ScriptBuilder) -> None:
    if builder.traits & {"closure", "one_backward", "uneven"} or builder.micro_batches > 1:
        return
    if builder.rng.random() < 0.25:
        builder.micro_batches = builder.rng.choice([2, 3])
        builder.tag(f"{builder.micro_batches} micro batches")
