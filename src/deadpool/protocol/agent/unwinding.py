"""A node's part in a fence: its streams are cut, its trainers come to rest, and then it says what it has."""

from __future__ import annotations

from deadpool.protocol.agent.seating import Seating
from deadpool.protocol.agent.state import Station
from deadpool.protocol.agent.trainers import State, Trainer
from deadpool.protocol.effects import CutStreams
from deadpool.protocol.identity import NO_GENERATION, Generation
from deadpool.protocol.messages import Fence, FenceAck, Halt


class Unwinding:
    def __init__(self, station: Station, seating: Seating) -> None:
        self._station, self._seating = station, seating
        self._acked = True
        self._streams_cut = NO_GENERATION
        self._hung: list[tuple[int, str]] = []  # since the last plan: rank, how it was found
        self.deadline: float | None = None  # for trainers to come to rest

    def fence(self, fence: Fence, now: float) -> None:
        """Rule 12, the fence freezes a node. Nothing is captured, sealed, sent or overwritten from here until the
        plan."""
        station = self._station
        assert station.settings is not None
        station.enter(fence.generation, fence.cause, fenced=True)
        self._acked = False
        self._seating.fence()
        station.store.fence(fence.generation)
        for trainer in list(station.crew.seated()):
            self._halt(trainer, fence)
        self.deadline = now + station.settings.unwind_s
        station.effects.append(CutStreams(generation=fence.generation))

    def _halt(self, trainer: Trainer, fence: Fence) -> None:
        crew = self._station.crew
        if trainer.has_state:
            trainer.halting, trainer.live = True, None
            crew.tell(trainer, Halt(generation=fence.generation, cause=fence.cause))
        elif trainer.under_real_groups:
            trainer.halting = True  # nothing to keep, and no step boundary to come back to
            crew.kill(trainer, "fenced before its first step")
        elif trainer.store is not None:
            trainer.state = State.REHEARSING  # a newcomer goes on building for its rank; the plan may seat it again
        else:
            trainer.state, trainer.rank = State.STARTING, None

    def streams_cut(self, generation: Generation) -> None:
        self._streams_cut = max(self._streams_cut, generation)
        if self._station.fenced and generation == self._station.generation:
            self._station.store.streams_ended()
        self.maybe_ack()

    def found_hung(self, rank: int, found: str) -> None:
        self._hung.append((rank, found))

    def maybe_ack(self) -> None:
        """Frozen: streams cut, trainers at rest, nobody writes into a slot."""
        station = self._station
        if not station.fenced or self._acked or self._streams_cut < station.generation:
            return
        if not station.crew.at_rest() or not station.store.is_quiet():
            return
        self._acked, self.deadline = True, None
        inventory = station.store.inventory(station.crew.lives())
        ack = FenceAck(generation=station.generation, inventory=inventory, hung=tuple(self._hung))
        station.tell_coordinator(ack)

    def look(self, now: float) -> None:
        if self.deadline is not None and now >= self.deadline:
            self.deadline = None
            self._end_restless()

    def _end_restless(self) -> None:
        crew, settings = self._station.crew, self._station.settings
        assert settings is not None
        for trainer in crew.trainers.values():
            if trainer.halting:
                crew.kill(trainer, "did not come to rest in time")
                if trainer.has_state and trainer.rank is not None:  # else it was told to go, not to rest
                    self.found_hung(trainer.rank, f"did not come to rest within {settings.unwind_s:g} s")

    def planned(self) -> None:
        """Who hung is known, and was reckoned with."""
        self._hung.clear()
