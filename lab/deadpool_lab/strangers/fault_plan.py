"""Draws the faults of one script: which node or trainer is killed, and when."""

from __future__ import annotations

import random
from dataclasses import dataclass

from deadpool_lab.strangers.generate import Script
from deadpool_lab.strangers.kind import Kind

_IN_A_STEP = ("forward", "backward", "reduce", "optimizer", "between", "capture", "wire")
_KIND_STEPS = (6, 8)  # of the first fault


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInjection:
    """With `at` None the fault comes from outside, at any time. The first one is ordered when the job starts
    (`order`)."""

    whole_node: bool
    rank: int  # of the trainer, or on the node, that is hit
    position: int  # of that node
    at: str | None
    step: int | None  # of a later injection: so many steps after the newest completed one
    delay_s: float = 0.0

    @property
    def order(self) -> str:
        target = f"node=n{self.position}" if self.whole_node else f"rank={self.rank}"
        step = "" if self.step is None else f" step={self.step}"
        return f"at={self.at}{step} {target}"

    def __str__(self) -> str:
        target = f"node of rank {self.rank}" if self.whole_node else f"trainer of rank {self.rank}"
        when = "from outside" if self.at is None else f"at {self.at}"
        return f"{target} {when}" + ("" if self.step is None else f" of step {self.step}")


def draw_injections(script: Script) -> list[PlannedInjection]:
    if script.kind is not None:
        return _draw_for_kind(script, script.kind)
    rng = random.Random(f"injections {script.seed} {script.number}")
    count = rng.choices([1, 2, 3], [5, 3, 2])[0]
    first = _draw(rng, script, rng.randint(0, script.steps // 2))
    return [first, *(_draw_later(rng, script, first) for _ in range(count - 1))]


def _draw_for_kind(script: Script, kind: Kind) -> list[PlannedInjection]:
    """The first one comes when the script has done what it does later than at first, and after what may be said of it
    before any fault."""
    rng = random.Random(f"injections {kind.name} {script.seed} {script.number}")
    first = _draw_kind_injection(rng, script, kind, rng.randint(*_KIND_STEPS))
    return [first] if rng.random() < 0.7 else [first, _draw_kind_injection(rng, script, kind, rng.randint(1, 2))]


def _draw_kind_injection(rng: random.Random, script: Script, kind: Kind, step: int) -> PlannedInjection:
    per_node, world_size = script.shape.per_node, script.shape.world_size
    ranks = {"any": range(world_size), "rank 0": range(1), "other nodes": range(per_node, world_size)}[kind.victims]
    rank = rng.choice(ranks)
    return PlannedInjection(
        whole_node=rng.random() < 0.6,
        rank=rank,
        position=rank // per_node,
        at=rng.choice(kind.moments),
        step=step,
        delay_s=rng.uniform(0.0, 0.4),
    )


def _draw(rng: random.Random, script: Script, step: int) -> PlannedInjection:
    moments = [*_IN_A_STEP, "clip"] if script.clips else list(_IN_A_STEP)
    at = rng.choice(moments) if rng.random() < 0.75 else None
    rank = rng.randrange(script.shape.world_size)
    if at in ("capture", "wire"):
        step = max(step, 1)
    return PlannedInjection(
        whole_node=rng.random() < 0.6,
        rank=rank,
        position=rank // script.shape.per_node,
        at=at,
        step=None if at is None else step,
        delay_s=rng.uniform(0.0, 0.4),
    )


def _draw_later(rng: random.Random, script: Script, first: PlannedInjection) -> PlannedInjection:
    """Right after a recovery a trainer, whose node still has its copy; a node only when copies are complete again."""
    if rng.random() < 0.3 and script.shape.nodes > 1:
        others = [rank for rank in range(script.shape.world_size) if rank // script.shape.per_node != first.position]
        rank = rng.choice(others)
        position = rank // script.shape.per_node
        return PlannedInjection(whole_node=False, rank=rank, position=position, at="recovered", step=None)
    return _draw(rng, script, rng.randint(1, 2))
