"""A node's part in a fence: its streams are cut, its trainers come to rest, and then it reports what it has."""

from __future__ import annotations

from deadpool.protocol.agent.phase import AgentPhase
from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.seating import Seating
from deadpool.protocol.agent.trainers.trainers import Trainer, TrainerState
from deadpool.protocol.effects import CutStreams
from deadpool.protocol.identity import NO_GENERATION, Generation
from deadpool.protocol.inputs import WAITS
from deadpool.protocol.messages import WAITS_FOR_DATA, Fence, FenceAck, Halt

STUCK_AT_LEAST_S = 3.0
STUCK_STEPS = 3
"""A rank that was told to come to rest is replaced once it was idle for so long, and for so many of its steps."""

REST_S = 1.0
"""A rank that comes to rest by itself has done so by then."""


class Unwinding:
    def __init__(self, state: AgentState, seating: Seating) -> None:
        self._state, self._seating = state, seating
        self._streams_cut = NO_GENERATION
        self._hung: list[tuple[int, str]] = []  # since the last plan: rank, how it was found
        self._fenced_at = 0.0
        self.deadline: float | None = None  # for trainers to come to rest

    def fence(self, fence: Fence, now: float) -> None:
        """Rule 12 (the fence freezes a node): nothing is captured, sealed, sent or overwritten until the plan."""
        state = self._state
        assert state.settings is not None
        state.current.fence(fence.generation, fence.cause)
        self._seating.fence()
        state.copies.fence()
        for trainer in list(state.trainers.seated()):
            trainer.take_back_release()
            self._halt(trainer, fence)
        self._fenced_at, self.deadline = now, now + state.settings.unwind_s
        state.effects.append(CutStreams(generation=fence.generation))

    def _halt(self, trainer: Trainer, fence: Fence) -> None:
        trainers = self._state.trainers
        if trainer.has_state:
            trainer.halting, trainer.live = True, None
            trainers.tell(trainer, Halt(generation=fence.generation, cause=fence.cause))
        elif trainer.under_real_groups:
            trainer.halting = True  # it has nothing to keep, and no step boundary to come back to
            trainers.kill(trainer, "fenced before its first step")
        elif trainer.store is not None:
            trainer.state = TrainerState.REHEARSING  # a newcomer goes on building for its rank: it may be seated again
        else:
            trainer.state, trainer.rank = TrainerState.STARTING, None

    def on_streams_cut(self, generation: Generation) -> None:
        self._streams_cut = max(self._streams_cut, generation)
        if self._state.current.is_fenced and generation == self._state.current.generation:
            self._state.copies.on_streams_cut()
        self.acknowledge_if_frozen()

    def report_hung(self, rank: int, found: str) -> None:
        """Notes a rank that hangs. The coordinator is told it with the next acknowledgement."""
        self._hung.append((rank, found))

    def acknowledge_if_frozen(self) -> None:
        """Frozen means: streams are cut, trainers are at rest, no slot is being written."""
        state, current = self._state, self._state.current
        if current.phase is not AgentPhase.UNWINDING or self._streams_cut < current.generation:
            return
        if not state.trainers.at_rest() or not state.copies.is_quiet():
            return
        current.freeze()
        self.deadline = None
        self._acknowledge()

    def acknowledge_again(self) -> None:
        """The coordinator had lost this node, and its acknowledgement with it."""
        if self._state.current.phase is AgentPhase.FROZEN:
            self._acknowledge()

    def _acknowledge(self) -> None:
        state = self._state
        inventory = state.copies.inventory(state.trainers.lives())
        ack = FenceAck(
            generation=state.current.generation,
            inventory=inventory,
            hung=tuple(self._hung),
            planned=self._seating.plan.generation if self._seating.plan is not None else None,
        )
        state.tell_coordinator(ack)

    def next_check(self) -> float | None:
        if self.deadline is None:
            return None
        return min((self._replaced_at(trainer) for trainer in self._idle()), default=self.deadline)

    def check_timeouts(self, now: float) -> None:
        if self.deadline is None:
            return
        for trainer in self._idle():
            if now >= self._replaced_at(trainer):
                self._replace(trainer, f"was idle for {trainer.idle_s(now):.0f} s and did not come to rest")
        if now >= self.deadline:
            self.deadline = None
            self._replace_halting()

    def _idle(self) -> list[Trainer]:
        """Returns the trainers that were told to halt, and neither halt nor do anything else. A rank that waits for
        data halts once the data has come, so it does not count."""
        halting = [t for t in self._halting() if t.has_state]
        return [t for t in halting if t.activity in WAITS and t.waits_for != WAITS_FOR_DATA]

    def _halting(self) -> list[Trainer]:
        return [t for t in self._state.trainers.by_name.values() if t.halting and not t.killed]

    def _replaced_at(self, trainer: Trainer) -> float:
        """A rank that waits for another comes to rest at once; one that waits for its device may need some steps."""
        stuck_s = max(STUCK_AT_LEAST_S, STUCK_STEPS * trainer.step_s)
        return max(trainer.activity_since + stuck_s, self._fenced_at + REST_S)

    def _replace_halting(self) -> None:
        settings = self._state.settings
        assert settings is not None
        for trainer in self._halting():
            self._replace(trainer, f"did not come to rest within {settings.unwind_s:g} s")

    def _replace(self, trainer: Trainer, found: str) -> None:
        self._state.trainers.kill(trainer, found)
        if trainer.has_state and trainer.rank is not None:  # else it has never been in its loop
            self.report_hung(trainer.rank, found)

    def on_plan(self) -> None:
        """The plan was made with these reports."""
        self._hung.clear()
