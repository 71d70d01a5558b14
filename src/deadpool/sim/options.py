"""What one seed draws: the job's shape, how fast things are, and what goes wrong when."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, replace

KINDS = (
    "node",
    "node",
    "node",
    "trainer",
    "trainer",
    "trainer",
    "alarm",
    "alarm",
    "pair",
    "spare",
    "silent",
    "newcomer",
)
WHENS = ("time", "fault", "fence", "fence", "go")
WITHIN_S = {"fault": 6.0, "fence": 1.5, "planned": 2.0, "go": 6.0}
REIGN_KINDS = ("die", "die", "die", "stall", "cut", "cut", "half")
REIGN_WHENS = ("time", "time", "fault", "fence", "planned", "go")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """One fault: so long after the beginning, or after the next event of that name (a fault, a fence, a go)."""

    kind: str
    when: str
    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    seed: int
    nodes: int
    per_node: int
    holders: int
    slots: int
    spares: int
    standby: int
    every: int
    replicated: bool  # part of the state is held identically by all ranks
    latency_s: float
    push_s: float
    give_up: float  # chance that a capture is given up
    stuck: float  # chance that a trainer does not unwind by itself
    push_failure: float
    hang_s: float | None  # when a trainer stops in the middle of its step, for ever
    faults: tuple[FaultPlan, ...]
    joins_s: tuple[float, ...]  # when further spares join
    calm_s: float  # when the liveness phase begins
    racks: int  # 0: nothing is said of racks
    in_place: bool  # survivors keep their processes
    budget: float  # share of the step time that captures may cost; 0: the interval stays
    copy_s: float  # for a capture, now and then
    deaf_s: float  # until a trainer heeds a change of the interval
    standbys: int = 0  # further places where a coordinator runs
    reign_faults: tuple[FaultPlan, ...] = ()  # of coordinators

    def rack_of(self, node: str) -> str | None:
        """By chance, and uneven; whoever joins has one too."""
        return f"r{zlib.crc32(node.encode()) % self.racks}" if self.racks else None


def draw(seed: int) -> Options:
    rng = random.Random(seed)
    nodes = rng.randint(2, 5) if rng.random() < 0.9 else 6
    calm_s = 6 + 20 * rng.random()
    options = Options(
        seed=seed,
        nodes=nodes,
        per_node=rng.choice((1, 1, 2)),
        holders=min(rng.choice((1, 1, 2)), nodes - 1),
        slots=rng.choice((2, 2, 3)),
        spares=rng.randint(0, 3),
        standby=rng.choice((0, 0, 1)),
        every=rng.choice((1, 1, 1, 2, 3)),
        replicated=rng.random() < 0.3,
        latency_s=rng.choice((0.005, 0.02, 0.2)),
        push_s=rng.choice((0.1, 0.5, 1.5)),
        give_up=rng.choice((0.0, 0.03, 0.2)),
        stuck=rng.choice((0.0, 0.05)),
        push_failure=rng.choice((0.0, 0.02, 0.2)),
        hang_s=_hang_s(random.Random(f"hang {seed}"), calm_s),
        faults=_faults(rng, calm_s),
        joins_s=tuple(sorted(calm_s * rng.random() for _ in range(rng.choice((0, 0, 1, 2))))),
        calm_s=calm_s,
        racks=rng.choice((0, 0, 2, 3)),
        in_place=rng.random() < 0.8,
        budget=0.0,
        copy_s=0.5,
        deaf_s=0.1,
    )
    options = _with_budget(options, rng) if rng.random() < 0.5 else options
    return _with_reign_faults(options, random.Random(f"reign {seed}"))


def _with_reign_faults(options: Options, rng: random.Random) -> Options:
    """More than one coordinator needs a majority of the nodes, and a majority of two is both of them."""
    if rng.random() < 0.6:
        return options
    standbys = rng.choice((0, 1, 2)) if options.nodes > 2 else 0
    plans = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        when = rng.choice(REIGN_WHENS)
        after_s = 1 + (options.calm_s - 1) * rng.random() if when == "time" else WITHIN_S[when] * rng.random() ** 2
        plans.append(FaultPlan(kind=rng.choice(REIGN_KINDS), when=when, after_s=after_s))
    return replace(options, standbys=standbys, reign_faults=tuple(plans), calm_s=options.calm_s + 15.0)


def _with_budget(options: Options, rng: random.Random) -> Options:
    """Changes of the interval follow measurements, and so take time."""
    return replace(
        options,
        budget=rng.choice((0.1, 0.3)),
        copy_s=rng.choice((0.5, 2.0)),
        deaf_s=rng.choice((0.1, 60.0)),
        calm_s=options.calm_s + 40.0,
    )


def _faults(rng: random.Random, calm_s: float) -> tuple[FaultPlan, ...]:
    count = rng.choice((0, 1, 2, 2, 3, 4, 6))
    plans = []
    for index in range(count):
        when = rng.choice(WHENS) if index else "time"
        after_s = 1 + (calm_s - 1) * rng.random() if when == "time" else WITHIN_S[when] * rng.random() ** 2
        plans.append(FaultPlan(kind=rng.choice(KINDS), when=when, after_s=after_s))
    return tuple(plans)


def _hang_s(rng: random.Random, calm_s: float) -> float | None:
    return calm_s * rng.random() if rng.random() < 0.3 else None
