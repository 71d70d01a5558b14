"""One seed from beginning to end: a phase with faults, then peace, in which the job has to come to its end."""

from __future__ import annotations

from dataclasses import dataclass

from deadpool.protocol.coordinator import Phase
from deadpool.sim.checkers import Violation, fail
from deadpool.sim.faults import Faults
from deadpool.sim.options import draw
from deadpool.sim.world import World

PATIENCE_S = 900.0
STEPS_IN_PEACE = 18
STEPS_TO_NARROW = 30
EVENTS_AT_MOST = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    seed: int
    violation: str | None
    outcome: str  # completed, or why the job ended
    faults: int
    steps: int
    events: int
    virtual_s: float
    story: tuple[str, ...] = ()

    @property
    def replay(self) -> str:
        return f"deadpool sim --first {self.seed} --seeds 1 --story"


def run_seed(seed: int, *, story: bool = False) -> Result:
    world = World(draw(seed), story=story)
    faults = Faults(world)
    violation = None
    try:
        _play(world, faults)
        _judge(world)
    except Violation as broken:
        violation = str(broken)
    except AssertionError as broken:
        violation = f"(assert) {_where(broken)}: {broken}"
    return Result(
        seed=seed,
        violation=violation,
        outcome=world.outcome.reason if world.outcome else "not ended",
        faults=faults.struck + faults.reigns.struck,
        steps=world.steps,
        events=world.clock.events,
        virtual_s=world.clock.now,
        story=tuple(world.story or ()),
    )


def _where(error: BaseException) -> str:
    """The innermost frame: which assertion it was."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "?"
    return f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"


def _play(world: World, faults: Faults) -> None:
    options = world.options
    world.start()
    for index in range(options.nodes):
        world.add_machine(f"n{index}", spare=False)
    for index in range(options.spares):
        world.add_machine(f"s{index}", spare=True)
    faults.arm()
    world.clock.at(options.calm_s, lambda: _bring_peace(world, faults))
    while world.outcome is None and world.clock.events < EVENTS_AT_MOST:
        if not world.clock.advance() or world.clock.now > options.calm_s + PATIENCE_S:
            break


def _bring_peace(world: World, faults: Faults) -> None:
    """No more faults, and spares enough: from here on only the protocol itself could stand in the way."""
    world.calm = True
    faults.reigns.end()
    narrowing = STEPS_TO_NARROW + 3 * world.every if world.options.budget else 0
    world.last_step = world.newest + STEPS_IN_PEACE + narrowing
    world.tell("world", "peace", {"last_step": world.last_step})
    for process in [p for machine in world.machines.values() for p in machine.processes.values()]:
        process.heed()
    world.on_waiting = lambda: _relieve(world)
    if world.coordinator.phase is Phase.WAITING:
        _relieve(world)


def _relieve(world: World) -> None:
    for _ in range(world.options.nodes):
        world.add_machine(f"p{world.next_number()}", spare=True)


def _judge(world: World) -> None:
    outcome = world.outcome
    if outcome is None and world.has_lost_majority:
        return
    if outcome is None:
        phase = world.coordinator.phase.value
        fail("g", f"not ended after {world.clock.now:.0f} s: {phase}, newest step {world.newest} of {world.last_step}")
    elif not outcome.failed:
        missing = set(range(world.layout.world_size)) - world.checkers.finished_ranks
        if missing:
            fail("b", f"completed, but ranks {sorted(missing)} never ended")
        world.checkers.grew()
    elif "none of the nodes that ran" in outcome.reason:
        if world.seats_there:
            fail("d", f"{outcome.reason}; but {world.seats_there} are there")
    elif not _is_excused(outcome.reason):
        fail("g", f"the job failed: {outcome.reason}")


def _is_excused(reason: str) -> bool:
    """Ends that say why. Whether a lost copy is really lost was looked at when it was said."""
    return "every copy of version" in reason or "no spare node joined" in reason or "no progress" in reason
