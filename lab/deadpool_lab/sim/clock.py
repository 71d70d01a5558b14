"""Virtual time, and collectives in it.

`Clock` and `LocalClock`: Virtual time: an event queue, and clocks of machines, which drift apart.

`Reduction` and `Reductions`: Collectives: no rank completes a step before every rank has come. An abort inside one
may give others garbage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from deadpool.protocol.identity import Generation
from deadpool_lab.sim.checking.history import State, Total, total_of

if TYPE_CHECKING:
    from deadpool_lab.sim.process import Process
    from deadpool_lab.sim.world import World


Action = Callable[[], None]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._queue: list[tuple[float, int, Action]] = []

    def at(self, time: float, action: Action) -> None:
        """Runs `action` at that time, or now if that is in the past: time never goes back."""
        self.events += 1
        heappush(self._queue, (max(time, self.now), self.events, action))

    def after(self, delay: float, action: Action) -> None:
        self.events += 1
        heappush(self._queue, (self.now + delay, self.events, action))

    def stop(self) -> None:
        self._queue.clear()

    def advance(self) -> bool:
        """Runs the next action. False means that nothing will ever happen again."""
        if not self._queue:
            return False
        self.now, _, action = heappop(self._queue)
        action()
        return True


class LocalClock:
    """The clock of one machine: it started at another time than the others, and drifts."""

    def __init__(self, clock: Clock, *, rate: float, ahead_s: float) -> None:
        self._clock, self._rate, self._ahead_s = clock, rate, ahead_s

    @property
    def now(self) -> float:
        return self._ahead_s + self._rate * self._clock.now

    def true(self, local: float) -> float:
        """The true time at which this clock shows `local`, or a moment later: a timer never fires early."""
        return (local - self._ahead_s) / self._rate + 1e-6


Completion = Callable[[Total, bool], None]
"""Called with the reduced value, and whether it is garbage."""


@dataclass(slots=True)
class Reduction:
    states: dict[int, State] = field(default_factory=dict)
    inside: dict[int, Completion] = field(default_factory=dict)  # ranks that have come and not left
    places: set[str] = field(default_factory=set)  # names of machines
    broken: bool = False


class Reductions:
    def __init__(self, world: World) -> None:
        self._world = world
        self._open: dict[tuple[Generation, int], Reduction] = {}
        self._where: dict[int, Reduction] = {}  # id of a process -> the reduction it is in

    def join(
        self, process: Process, key: tuple[Generation, int], given: dict[int, State], completion: Completion
    ) -> None:
        """`given`: what the ranks of this process give to the sum."""
        reduction, rank = self._open.setdefault(key, Reduction()), process.core.rank
        for each, state in given.items():
            assert each not in reduction.states, f"rank {each} came twice to step {key[1]} of generation {key[0]}"
            reduction.states[each] = state
        reduction.inside[rank] = completion
        reduction.places.add(process.machine.name)
        self._where[process.number] = reduction
        if len(reduction.states) == self._world.layout.world_size:
            self._complete(reduction, key)

    def _complete(self, reduction: Reduction, key: tuple[Generation, int]) -> None:
        """The collective waits while some machines cannot reach each other; some ranks may be aborted meanwhile."""
        places = reduction.places
        if any(a in places and b in places for a, b in self._world.network.cuts):
            self._world.after(1.0, partial(self._complete, reduction, key))
            return
        if not reduction.broken:
            self._world.checkers.on_collective(key[0])
        del self._open[key]
        for inside in list(reduction.inside):
            self._world.after(0.05, partial(self._leave, reduction, inside))

    def _leave(self, reduction: Reduction, rank: int) -> None:
        completion = reduction.inside.pop(rank, None)
        if completion is not None:
            garbage = reduction.broken and self._world.rng.random() < 0.5
            states = [reduction.states[r] for r in sorted(reduction.states)]
            completion(total_of(states), garbage)

    def left(self, process: int) -> None:
        self._where.pop(process, None)

    def abandoned(self, process: int, rank: int) -> None:
        """A process was aborted or died inside: each rank in there, itself included if it lives, may finish on
        garbage."""
        reduction = self._where.pop(process, None)
        if reduction is None or rank not in reduction.inside:
            return
        reduction.broken = True
        for peer in list(reduction.inside):
            if self._world.rng.random() < 0.25:
                self._world.after(0.3, partial(self._finish_on_garbage, reduction, peer))

    def _finish_on_garbage(self, reduction: Reduction, rank: int) -> None:
        completion = reduction.inside.pop(rank, None)
        if completion is not None:
            completion((self._world.rng.getrandbits(60), self._world.rng.getrandbits(60)), True)
