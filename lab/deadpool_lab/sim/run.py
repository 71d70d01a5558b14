"""One seed from beginning to end: a safety phase with faults, then a liveness phase in which the job has to end.

The faults that the seed has drawn are injected at their times or after an event, and counted by the phase that they
hit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

from deadpool.protocol.causes import EndCause
from deadpool.protocol.coordinator.job import Phase
from deadpool_lab.sim.checking import Violation, fail
from deadpool_lab.sim.faults import BY_KIND
from deadpool_lab.sim.faults.fault import TIME, FaultPlan, phase_of
from deadpool_lab.sim.options import ANYTHING, Profile, draw
from deadpool_lab.sim.world import World

PATIENCE_S = 450.0
"""Time for the job to complete its last steps in the liveness phase."""
GIVEN_UP_S = 60.0
"""Time in the liveness phase after which a job that has lost its majority is given up."""
STEPS_IN_PEACE = 18
STEPS_TO_NARROW = 30
EVENTS_AT_MOST = 500_000
_EXCUSED = (EndCause.COPIES_LOST, EndCause.NO_SPARE, EndCause.NO_PROGRESS, EndCause.FAILED_AT_END)
"""The job may end by these. Whether a copy is really lost was checked when the job said so, and likewise whether
what it made no progress for was there. A node may be lost while its script ends: no step has to be done again then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    seed: int
    options: str
    violation: str | None
    outcome: EndCause | None  # None: it has not ended
    reason: str  # the same in words
    faults: dict[tuple[str, str], int]  # by kind, and by the phase that they hit
    steps: int
    events: int
    virtual_s: float
    peace_s: float  # of it in the liveness phase
    profile: str = ANYTHING.name
    story: tuple[str, ...] = ()

    @property
    def replay(self) -> str:
        profile = "" if self.profile == ANYTHING.name else f" --profile {self.profile}"
        return f"deadpool lab sim --seed {self.seed}{profile} --story"


def run_seed(seed: int, *, story: bool = False, profile: Profile = ANYTHING) -> Result:
    options = draw(seed, profile)
    world = World(options, story=story)
    faults = Injector(world)
    violation = None
    try:
        _run_phases(world, faults)
        _check_outcome(world)
    except Violation as broken:
        violation = str(broken)
    except Exception as broken:
        violation = f"({type(broken).__name__}) {_where(broken)}: {broken}"
    return Result(
        seed=seed,
        options=str(options),
        violation=violation,
        outcome=world.outcome.cause if world.outcome else None,
        reason=world.outcome.reason if world.outcome else "not ended",
        faults=dict(faults.hit),
        steps=world.steps,
        events=world.clock.events,
        virtual_s=world.clock.now,
        peace_s=max(0.0, world.clock.now - options.calm_s),
        profile=profile.name,
        story=tuple(world.story or ()),
    )


def _where(error: BaseException) -> str:
    """The innermost frame, which names the assertion."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "?"
    return f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"


def _run_phases(world: World, faults: Injector) -> None:
    options, clock = world.options, world.clock
    world.start()
    for index in range(options.nodes):
        world.add_machine(f"n{index}", spare=False)
    for index in range(options.spares):
        world.add_machine(f"s{index}", spare=True)
    faults.schedule()
    clock.at(options.calm_s, lambda: _begin_liveness_phase(world))
    ends_at = options.calm_s + PATIENCE_S
    while world.outcome is None and clock.now < ends_at and clock.events < EVENTS_AT_MOST:
        if world.checkers.step_audits.is_over or not clock.advance():
            break


def _begin_liveness_phase(world: World) -> None:
    """Faults end and heal, and there are enough spares: from here on only the protocol could stop the job."""
    world.calm = True
    world.heal()
    if world.may_shrink:
        world.log("world", "peace", {})
        world.checkers.shrink.expect_growth(lambda: _set_last_step(world))
    else:
        _set_last_step(world)
    for process in [p for machine in world.machines.values() for p in machine.processes.values()]:
        process.heed()
    world.on_waiting = lambda: _add_spares(world)
    if world.coordinator.phase is Phase.WAITING or world.checkers.shrink.carried:
        _add_spares(world)
    if world.coordinator.phase is Phase.FORMING:
        _start_missing_nodes(world)
    world.clock.after(GIVEN_UP_S, lambda: _stop_if_hopeless(world))


def _set_last_step(world: World) -> None:
    if world.options.ends_at:
        return
    narrowing = STEPS_TO_NARROW + 3 * world.every if world.options.budget else 0
    world.last_step = world.newest + STEPS_IN_PEACE + narrowing
    world.log("world", "peace", {"last_step": world.last_step})


def _add_spares(world: World) -> None:
    for _ in range(world.options.nodes):
        world.add_machine(f"p{world.next_number()}", spare=True)


def _start_missing_nodes(world: World) -> None:
    """A job that never began waits for the nodes that it was started with, so dead ones start again."""
    for index in range(world.options.nodes):
        if not world.machines[f"n{index}"].alive:
            world.add_machine(f"n{index}", spare=False)


def _stop_if_hopeless(world: World) -> None:
    """A job without a majority that nothing runs cannot go on any more."""
    if world.has_lost_majority and not world.has_running_job:
        world.clock.stop()


def _check_outcome(world: World) -> None:
    outcome = world.outcome
    if world.checkers.corruption.is_unsolved or world.checkers.step_audits.is_over:
        return
    if outcome is None and world.has_lost_majority and not world.has_running_job:
        return
    if outcome is None:
        phase = world.coordinator.phase.value
        fail("g", f"not ended after {world.clock.now:.0f} s: {phase}, newest step {world.newest} of {world.last_step}")
    elif not outcome.failed:
        missing = set(range(world.layout.world_size)) - world.checkers.finished_ranks
        if missing:
            fail("b", f"completed, but ranks {sorted(missing)} never ended")
        if not world.options.ends_at:
            world.checkers.check_watermark_grew()
    elif outcome.cause is EndCause.NOBODY_CAME_BACK:
        if there := [machine.name for machine in world.surviving_voters]:
            fail("d", f"{outcome.reason}; but {there} are there")
    elif outcome.cause is EndCause.REPLICAS_DIFFER and world.checkers.corruption.may_end_young:
        return
    elif outcome.cause not in _EXCUSED:
        fail("g", f"the job failed: {outcome.reason}")


class Injector:
    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: dict[str, list[FaultPlan]] = {}
        self.hit: Counter[tuple[str, str]] = Counter()  # by kind and phase

    def schedule(self) -> None:
        for plan in self._world.options.faults:
            if plan.when == TIME:
                self._world.clock.at(plan.after_s, partial(self._inject, plan))
            else:
                self._waiting.setdefault(plan.when, []).append(plan)
        self._world.on_event = self._on_event

    def _on_event(self, what: str) -> None:
        """One fault follows each event of that name, so that faults with the same trigger do not come at once."""
        if self._waiting.get(what):
            plan = self._waiting[what].pop(0)
            self._world.clock.after(plan.after_s, partial(self._inject, plan))

    def _inject(self, plan: FaultPlan) -> None:
        world = self._world
        if world.calm or world.outcome is not None:
            return
        if world.clock.now < world.options.quiet_s:
            world.clock.after(world.options.quiet_s, partial(self._inject, plan))
            return
        phase = phase_of(world)
        if BY_KIND[plan.kind].inject(world):
            self.hit[plan.kind, phase] += 1
