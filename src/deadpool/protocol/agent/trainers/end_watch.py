"""Trainers that were released and hang at the end of their script: they are ended, so that the job ends.

A process can hang there for ever: one of its threads holds Python's lock and waits for another, which needs the lock
(torch has an example: docs/design-notes.md). No thread of the process can tell, so it is asked (`Ping`): its monitor
answers unless Python stands still. A trainer that is idle, as the kernel sees it, and does not answer for long will
never do anything again. One that works, or that waits for something and answers, is left alone however long it takes.
"""

from __future__ import annotations

from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.trainers import Trainer
from deadpool.protocol.inputs import Activity
from deadpool.protocol.messages import Ping

SILENT_HEARTBEATS = 60
"""A trainer may leave a question unanswered for so many heartbeats; it is asked again after as many."""


class EndWatch:
    def __init__(self, state: AgentState) -> None:
        self._state = state

    def on_pong(self, trainer: Trainer, now: float) -> None:
        trainer.pinged_at, trainer.answered_at = None, now

    def discount_stall(self, seconds: float) -> None:
        """Rule 20, timeouts: while this process did not run, it could hear no answer."""
        for trainer in self._state.trainers.by_name.values():
            if trainer.pinged_at is not None:
                trainer.pinged_at += seconds

    def deadline(self) -> float | None:
        return min((self._due(trainer) for trainer in self._idle()), default=None)

    def check(self, now: float) -> None:
        for trainer in self._idle():
            if now < self._due(trainer):
                continue
            if trainer.pinged_at is None:
                trainer.pinged_at = now
                self._state.trainers.tell(trainer, Ping())
            else:
                self._end(trainer, now - trainer.pinged_at)

    def _idle(self) -> list[Trainer]:
        """One that does something meanwhile is asked anew when it is idle again."""
        found = []
        for trainer in self._state.trainers.seated():
            if trainer.released and not trainer.killed and trainer.activity is Activity.IDLE:
                found.append(trainer)
            else:
                trainer.pinged_at = None
        return found

    def _due(self, trainer: Trainer) -> float:
        if trainer.pinged_at is not None:
            return trainer.pinged_at + self._silent_s
        return max(trainer.activity_changed, trainer.answered_at) + self._silent_s

    @property
    def _silent_s(self) -> float:
        settings = self._state.settings
        assert settings is not None, "no trainer is released before the node was welcomed"
        return SILENT_HEARTBEATS * settings.heartbeat_s

    def _end(self, trainer: Trainer, seconds: float) -> None:
        """A script that has destroyed its groups after its loop was done with its work: it has not failed, unless it
        said so."""
        if trainer.asked_code is not None:
            trainer.exit_code = trainer.asked_code
        elif trainer.groups_destroyed and trainer.exit_reason is None:
            trainer.exit_code = 0
        rank, name, code = trainer.rank, trainer.name, trainer.exit_code
        self._state.emit("stuck_at_end", rank=rank, trainer=name, seconds=seconds, code=code)
        self._state.trainers.kill(trainer, "it hung at the end of its script")
