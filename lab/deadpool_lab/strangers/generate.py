"""Draws a script: the same seed and number give the same text."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from deadpool_lab.strangers import render
from deadpool_lab.strangers.draft import Draft, Shape
from deadpool_lab.strangers.feature import Feature, choose, sprinkle
from deadpool_lab.strangers.features.apart import APART
from deadpool_lab.strangers.features.by_hand import BY_HAND
from deadpool_lab.strangers.features.collectives import COLLECTIVES
from deadpool_lab.strangers.features.data import DATA
from deadpool_lab.strangers.features.data_parallel import DATA_PARALLEL
from deadpool_lab.strangers.features.habits import HABITS
from deadpool_lab.strangers.features.loaders import LOADERS
from deadpool_lab.strangers.features.losses import LOSSES
from deadpool_lab.strangers.features.models import MODELS
from deadpool_lab.strangers.features.optimizers import CLIPPING, OPTIMIZERS, SCHEDULES, write_closure
from deadpool_lab.strangers.features.pipelines import PIPELINES, write_pipeline
from deadpool_lab.strangers.features.precision import AVERAGES, PRECISION
from deadpool_lab.strangers.features.refused import REFUSED
from deadpool_lab.strangers.features.seeds import write_seeds
from deadpool_lab.strangers.features.sharded import SHARDED
from deadpool_lab.strangers.kind import Kind, kind_named
from deadpool_lab.strangers.kind_draft import draw_kind
from deadpool_lab.strangers.kinds.all_kinds import KINDS

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
    HABITS,
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
    draft = Draft(rng, Shape(nodes=nodes, per_node=per_node), steps=rng.randint(8, 14))
    _draw(draft)
    return _script(draft, seed, number)


def _of_kind(seed: int, number: int, kind: Kind) -> Script:
    rng = random.Random(f"kind {kind.name} {seed} {number}")
    nodes, per_node = rng.choice(_KIND_SHAPES)
    draft = Draft(rng, Shape(nodes=nodes, per_node=per_node), steps=rng.randint(12, 15))
    draw_kind(draft, kind)
    return _script(draft, seed, number, kind)


def _script(draft: Draft, seed: int, number: int, kind: Kind | None = None) -> Script:
    return Script(
        seed=seed,
        number=number,
        shape=draft.shape,
        steps=draft.steps,
        text=render.text(draft, f"Stranger {number} of seed {seed}: {', '.join(draft.tags)}."),
        tags=tuple(draft.tags),
        files=draft.files,
        refused=draft.refused,
        clips="clips" in draft.traits,
        skips_errors=draft.skips_errors,
        environment=draft.environment,
        kind=kind,
    )


def _draw(draft: Draft) -> None:
    rng = draft.rng
    draft.width, draft.batch = rng.choice([8, 12, 16]), rng.choice([4, 6])
    draft.flat = rng.random() < 0.3
    draft.backend = rng.choice(["gloo", "cpu:gloo"])
    families, weights = zip(*_LAYOUTS, strict=True)
    choose(draft, rng.choices(families, weights)[0])
    if "own_model" not in draft.traits:
        choose(draft, MODELS)
    write_seeds(draft)
    choose(draft, LOADERS if rng.random() < 0.35 else DATA)
    _share_batches(draft)
    choose(draft, OPTIMIZERS)
    _accumulate(draft)
    sprinkle(draft, CLIPPING)
    choose(draft, SCHEDULES)
    choose(draft, PRECISION)
    choose(draft, LOSSES)
    choose(draft, AVERAGES)
    sprinkle(draft, HABITS)
    sprinkle(draft, COLLECTIVES)
    if "closure" in draft.traits:
        write_closure(draft)
    if "pipeline" in draft.traits:
        write_pipeline(draft)
    if rng.random() < _REFUSED_SHARE:
        choose(draft, REFUSED)


def _share_batches(draft: Draft) -> None:
    """Ranks that compute one model together get the same batch."""
    if "same_batches" in draft.traits:
        draft.fetch.append("dist.broadcast(x, src=0)\ndist.broadcast(y, src=0)")
    if "pairs_share_batches" in draft.traits:
        draft.fetch.append(
            'for tensor in (x, y):\n    dist.broadcast(tensor, group_src=0, group=mesh["tensor"].get_group())'
        )


def _accumulate(draft: Draft) -> None:
    if draft.traits & {"closure", "one_backward", "uneven"} or draft.micro_batches > 1:
        return
    if draft.rng.random() < 0.25:
        draft.micro_batches = draft.rng.choice([2, 3])
        draft.tag(f"{draft.micro_batches} micro batches")
