"""Trainers that do nothing: what follows from what the kernel says of their processes.

A process that a signal has stopped is ended soon, because the whole job waits for it and another process can take its
rank from this node's memory. A process that is idle may well wait for another rank, so that alone means nothing: the
coordinator is told which ranks are idle (`coordinator/hang.py`), and a rank that stays idle although it was told to
come to rest is replaced (`unwinding.py`).
"""

from __future__ import annotations

from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.trainers import Trainer
from deadpool.protocol.agent.trainers.unwinding import Unwinding
from deadpool.protocol.inputs import WAITS, Activity

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
