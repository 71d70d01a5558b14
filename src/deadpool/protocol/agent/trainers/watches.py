"""Trainers that need help: stopped ones, ones that hang at their end, ones without protection.

`ActivityWatch`: Trainers that do nothing: what follows from what the kernel says of their processes.

A process that a signal has stopped is ended soon, because the whole job waits for it and another process can take
its rank from this node's memory. A process that is idle may well wait for another rank, so that alone means nothing:
the coordinator is told which ranks are idle (`coordinator/membership/hang.py`), and a rank that stays idle although
it was told to come to rest is replaced (`unwinding.py`).

`EndWatch`: Trainers that were released and hang at the end of their script: they are ended, so that the job ends.

A process can hang there for ever: one of its threads holds Python's lock and waits for another, which needs the lock
(torch has an example: docs/design-notes.md). No thread of the process can tell, so it is asked (`Ping`): its monitor
answers unless Python stands still. A trainer that is idle, as the kernel sees it, and does not answer for long will
never do anything again. One that works, or that waits for something and answers, is left alone however long it
takes.

`ProtectionWatch` warns, once per rank, when a rank of this node does not reach its protected loop: a fault would
cost such a job all of its work.
"""

from __future__ import annotations

from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.trainers import Trainer
from deadpool.protocol.agent.trainers.unwinding import Unwinding
from deadpool.protocol.inputs import WAITS, Activity
from deadpool.protocol.messages import Ping

STOPPED_S = 2.0
"""A trainer may be stopped for so long, for example by a tool that looks into it."""


class ActivityWatch:
    def __init__(self, state: AgentState, unwinding: Unwinding) -> None:
        self._state, self._unwinding = state, unwinding

    def on_activity(self, name: str, activity: Activity, now: float) -> None:
        trainer = self._state.trainers.by_name.get(name)
        if trainer is None or activity is trainer.activity:
            return
        if not (trainer.activity in WAITS and activity in WAITS):
            trainer.activity_since = now
        trainer.activity, trainer.activity_changed = activity, now

    def discount_stall(self, seconds: float) -> None:
        """Rule 20, timeouts: while this process did not run, a signal to go on may have gone to all of the node."""
        for trainer in self._state.trainers.by_name.values():
            trainer.activity_since += seconds
            trainer.activity_changed += seconds

    def deadline(self) -> float | None:
        return min((trainer.activity_since + STOPPED_S for trainer in self._stopped()), default=None)

    def check(self, now: float) -> None:
        for trainer in self._stopped():
            if now >= trainer.activity_since + STOPPED_S:
                self._end(trainer)

    def _stopped(self) -> list[Trainer]:
        """Returns the stopped trainers that have a rank: nobody waits for the others."""
        return [t for t in self._state.trainers.seated() if t.activity is Activity.STOPPED and not t.killed]

    def _end(self, trainer: Trainer) -> None:
        reason = f"a signal had stopped it for {STOPPED_S:g} s"
        trainer.exit_reason = trainer.exit_reason or reason
        self._state.trainers.kill(trainer, reason)
        if trainer.halting and trainer.has_state and trainer.rank is not None:
            self._unwinding.report_hung(trainer.rank, reason)


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


WARN_AFTER_S = 60.0


class ProtectionWatch:
    """Checked with every heartbeat."""

    def __init__(self, state: AgentState) -> None:
        self._state = state
        self._since: dict[str, float] = {}  # trainers that run the script from its first line: since when
        self._warned: set[int | None] = set()  # ranks

    def check(self, now: float) -> None:
        seated = self._state.trainers.seated()
        unprotected = [t for t in seated if t.under_real_groups and t.begun and not t.has_state]
        self._since = {trainer.name: self._since.get(trainer.name, now) for trainer in unprotected}
        for trainer in unprotected:
            seconds = now - self._since[trainer.name]
            if seconds >= WARN_AFTER_S and trainer.rank not in self._warned:
                self._warned.add(trainer.rank)
                self._state.emit("not_protected_yet", rank=trainer.rank, seconds=round(seconds))
