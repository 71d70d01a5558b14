"""How many ranks a spare rehearses: as many as a user says (`--rehearsals N`), or as memory allows.

By default a spare begins with one process per seat. When these are parked and it is known what they take, and memory
was looked at since, as many further ones follow, and so on. Further rehearsals never take more than FURTHER_SHARE of
the node's memory together with their slots, and leave LEFT_SHARE of it: what the spare needs when it trains is there.
Where memory becomes short they end again, and none follows.

Where a rehearsal holds memory of a device there is one per seat: what a step takes there beside it, only the user can
know.
"""

from __future__ import annotations

from deadpool.protocol.agent.copies.slot_growth import NodeMemory
from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.trainers import Trainer, TrainerState

AT_MOST = 4
"""Rehearsals per seat."""
FURTHER_SHARE = 0.25
LEFT_SHARE = 0.5


class RehearsalGrowth:
    def __init__(self, state: AgentState, *, grows: bool) -> None:
        """`grows`: this is a spare, and the user has not said how many rehearsals there are to be."""
        self._state, self._grows = state, grows
        self._memory: NodeMemory | None = None  # None: it was not looked at since a rehearsal was measured
        self._further = 0  # per seat

    def on_measured(self, name: str, memory_bytes: int) -> None:
        """What a parked process takes for itself."""
        trainer = self._state.trainers.by_name.get(name)
        if trainer is not None and trainer.state is TrainerState.PARKED:
            trainer.memory_bytes = memory_bytes
            self._memory = None

    def on_memory(self, memory: NodeMemory) -> None:
        self._memory = memory
        settings = self._state.settings
        if not self._grows or settings is None or self._state.current.is_fenced or any(self._state.trainers.seated()):
            return
        if memory.is_short:
            self._end_further(settings.layout.per_node)
        elif self._may_follow(settings.layout.per_node, settings.layout.positions, memory):
            self._further += 1
            self._memory = None
            for _ in range(settings.layout.per_node):
                self._state.trainers.start()

    def _may_follow(self, seats: int, positions: int, memory: NodeMemory) -> bool:
        parked = self._state.trainers.free()
        has = len(parked) // seats
        known = all(each.state is TrainerState.PARKED and each.memory_bytes for each in parked)
        if not parked or not known or has >= min(AT_MOST, positions) or any(each.device_bytes for each in parked):
            return False
        each_bytes = max(self._bytes_of(each) for each in parked) * seats
        share_is_left = (self._further + 1) * each_bytes <= FURTHER_SHARE * memory.total_bytes
        return share_is_left and memory.available_bytes - each_bytes >= LEFT_SHARE * memory.total_bytes

    def _bytes_of(self, trainer: Trainer) -> int:
        """Returns what a rehearsal takes, with the slots for the rank's snapshots."""
        own = self._state.copies.own.get(trainer.rank) if trainer.rank is not None else None
        slots = sum(slot.geometry.slot_bytes for slot in own.by_ref.values()) if own is not None else 0
        return trainer.memory_bytes + slots

    def _end_further(self, seats: int) -> None:
        """Ends all but the first rehearsal of each seat. None is tried again."""
        if not self._further:
            return
        self._further, self._grows = 0, False
        for trainer in self._state.trainers.free()[seats:]:
            self._state.trainers.discard(trainer, "memory is short")
        self._state.report_trainers()
