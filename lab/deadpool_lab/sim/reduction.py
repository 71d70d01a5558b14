"""Collectives: no rank completes a step before every rank has come. An abort inside one may give others garbage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from deadpool.protocol.identity import Generation
from deadpool_lab.sim.checking.history import State, Total, total_of

if TYPE_CHECKING:
    from deadpool_lab.sim.process import Process
    from deadpool_lab.sim.world import World

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

    def join(self, process: Process, key: tuple[Generation, int], completion: Completion) -> None:
        reduction, rank = self._open.setdefault(key, Reduction()), process.core.rank
        for each, state in process.states().items():
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
