"""What one seed draws: the shape of the job, the speed of its parts, and the faults with their times."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from deadpool_lab.sim.faults import ALL, FaultKind, FaultPlan, departures, devices, links, machines
from deadpool_lab.sim.faults.fault import TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOptions:
    seed: int
    nodes: int
    per_node: int
    holders: int
    slots: int  # 0: as many as are needed
    spares: int
    standby: int
    every: int
    replicated: bool  # part of the state is held identically by all ranks
    latency_s: float
    push_s: float
    give_up: float  # chance that a capture is given up
    stuck: float  # chance that a trainer does not unwind by itself
    push_failure: float
    faults: tuple[FaultPlan, ...]
    calm_s: float  # when the liveness phase begins
    racks: int  # 0: racks are not named
    in_place: bool  # survivors keep their processes
    budget: float  # share of the step time that captures may cost; 0: the interval stays
    copy_s: float  # for a capture, in slow stretches
    deaf_s: float  # until a trainer follows a change of the interval
    late: float = 0.0  # chance that a stream of copies is offered late
    drift: float = 0.0  # by which clocks are at most faster or slower than the true time
    standbys: int = 0  # further hosts with a coordinator
    load_s: float = 1.0  # at most, until a trainer has loaded its snapshot: the next fault may come before
    adaptive: bool = False  # protection follows the health of nodes
    evict: bool = False  # and ill nodes are drained
    scheme: str = ""  # how copies are protected, as rs(2,1); empty: by whole copies at the holders
    coded: str = ""  # how the job may code them where whole copies take too much memory; empty: it may not
    shards: int = 0  # the job may shrink: so many ranks hold all tensors, the next ones the same again; 0: it may not
    quiet_s: float = 0.0  # before which no fault comes: it comes so much later
    ends_at: int = 0  # the step after which the script ends, while there are faults; 0: after they have ended
    end_s: float = 0.5  # that a script takes at most from there to its end
    exact: bool = False  # what ranks hold alike is the same when it is computed again
    errs: bool = False  # devices may err without a word
    audit_every: int = 0  # every so many steps one is computed twice, and computes the same then; 0: none is
    audit_spares: int = 0  # so many of these audits lie between two in which a spare is the judge; 0: it never is
    durable: bool = False  # checkpoints are written to a store, and are what is left when all copies of a rank are lost

    def __str__(self) -> str:
        """The lines with which a story begins."""
        shape = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "faults"}
        drawn = " ".join(
            f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}" for name, value in shape.items()
        )
        faults = ", ".join(f"{plan.kind} {plan.after_s:.1f} s after {plan.when}" for plan in self.faults)
        return f"{drawn}\nfaults: {faults or 'none'}"

    def rack_of(self, node: str) -> str | None:
        """Racks are drawn by name, unevenly; a node that joins later has one too."""
        return f"r{zlib.crc32(node.encode()) % self.racks}" if self.racks else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A mix of faults that leads to situations which are rare among all seeds. An empty `kinds` means all of them;
    `shape` sets what all seeds of the profile have in common, `triggers` when their faults come."""

    name: str
    kinds: frozenset[str] = frozenset()
    intensity: float | None = None  # None: the seed draws it
    shape: Callable[[SeedOptions], SeedOptions] = lambda options: options
    triggers: tuple[str, ...] = ()  # of all its kinds; empty: each kind has its own

    def includes(self, fault: FaultKind) -> bool:
        return not self.kinds or fault.kind in self.kinds


ANYTHING = Profile(name="anything")
SIZE_KINDS = frozenset(kind.kind for kind in departures.SIZE_FAULTS)
MEMORY_KINDS = frozenset(kind.kind for kind in machines.MEMORY_USE_FAULTS)
DEVICE_KINDS = frozenset(kind.kind for kind in devices.FAULTS)
AUDIT_KINDS = frozenset(kind.kind for kind in devices.AUDIT_FAULTS)
LASTING_KINDS = frozenset(kind.kind for kind in devices.LASTING_FAULTS)
HEALTH_KINDS = frozenset(kind.kind for kind in departures.HEALTH_FAULTS)
INTENSITIES = (0.0, 0.3, 0.6, 1.0, 1.0, 1.5)
"""Factors on the chances of all kinds, so that some seeds are quiet and some are hostile."""


DRAWN_SLOTS = 3


def draw(seed: int, profile: Profile = ANYTHING) -> SeedOptions:
    rng = random.Random(seed)
    nodes = rng.randint(2, 5) if rng.random() < 0.9 else 6
    options = SeedOptions(
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
        faults=(),
        calm_s=6 + 20 * rng.random(),
        racks=rng.choice((0, 0, 2, 3)),
        in_place=rng.random() < 0.8,
        budget=0.0,
        copy_s=0.5,
        deaf_s=0.1,
        late=rng.choice((0.0, 0.0, 0.05)),
        drift=rng.choice((0.0, 0.01, 0.05)),
        standbys=rng.choice((0, 0, 0, 1, 2)) if nodes > 2 else 0,
    )
    options = _with_budget(options, rng) if rng.random() < 0.15 else options
    drawn = rng.choice(INTENSITIES)
    options = replace(options, load_s=rng.choice((1.0, 1.0, 8.0)))
    options = profile.shape(options)
    if options.slots == DRAWN_SLOTS and not options.coded and seed % 2:
        options = replace(options, slots=0)  # as many as are needed, by default
    return _with_faults(options, profile, drawn if profile.intensity is None else profile.intensity)


def _with_budget(options: SeedOptions, rng: random.Random) -> SeedOptions:
    """Changes of the interval follow measurements, so such a seed takes longer."""
    return replace(
        options,
        budget=rng.choice((0.1, 0.3)),
        copy_s=rng.choice((0.5, 2.0)),
        deaf_s=rng.choice((0.1, 60.0)),
        calm_s=options.calm_s + 40.0,
    )


def _with_faults(options: SeedOptions, profile: Profile, intensity: float) -> SeedOptions:
    """Draws faults. One comes at a time of its own: faults that follow an event would otherwise wait for ever."""
    kinds = [kind for kind in ALL if profile.includes(kind) and _can_meet(options, kind)]
    if profile.triggers:
        kinds = [replace(kind, triggers=profile.triggers) for kind in kinds]
    plans = [plan for kind in kinds for plan in kind.draw(options.seed, intensity=intensity, calm_s=options.calm_s)]
    if plans and all(plan.when != TIME for plan in plans):
        plans[0] = replace(plans[0], when=TIME, after_s=options.calm_s / 2)
    if any(plan.kind in HEALTH_KINDS for plan in plans):
        evict = random.Random(f"evict {options.seed}").random() < 0.5
        options = replace(options, adaptive=True, evict=evict or options.evict)
    longer = 15.0 if any(plan.kind.startswith("coordinator") for plan in plans) else 0.0
    return replace(options, faults=tuple(plans), calm_s=options.calm_s + longer)


def _can_meet(options: SeedOptions, kind: FaultKind) -> bool:
    """Some kinds mean something only to a job that may shrink, that may choose its scheme, or that may end early."""
    if kind.kind in DEVICE_KINDS:
        return options.errs
    if kind.kind in AUDIT_KINDS:
        return bool(options.audit_every)
    if kind.kind in LASTING_KINDS:
        return bool(options.audit_spares)
    if kind.kind in MEMORY_KINDS:
        return bool(options.coded)
    if kind.kind == links.WITH_MACHINE:
        return bool(options.ends_at)
    return bool(options.shards) or kind.kind not in SIZE_KINDS
