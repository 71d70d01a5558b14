"""What a spare does while it is parked: it runs the user's command, until a fence says that the spare is needed.

The command is started when all rehearsals are done. It is not stopped for another rehearsal: it is niced, and a
rehearsal is not urgent unless the spare is needed, which stops the command anyway.
"""

from __future__ import annotations

from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.trainers import TrainerState
from deadpool.protocol.features.leases.parked_work import ParkedWork
from deadpool.protocol.inputs import ParkedWorkEnded
from deadpool.protocol.messages import Plan

_AT_REST = (TrainerState.PARKED, TrainerState.COLD)
NEEDED = "this spare takes the ranks of a lost node"


class IdleTime:
    def __init__(self, state: AgentState, *, works: bool) -> None:
        self._state = state
        self.work = ParkedWork(state.effects.append, state.emit, enabled=works)
        self._needed = False

    def on_needed(self) -> None:
        self._needed = True
        self.work.stop(NEEDED)

    def on_plan(self, plan: Plan) -> None:
        """Ends the idle work if the plan seats this node. The plan may be the first that a spare hears of it: one that
        has just joined is not told with the fence.
        """
        self._needed = bool(plan.orders)
        if plan.orders:
            self.work.stop(NEEDED)

    def on_ended(self, ended: ParkedWorkEnded, now: float) -> None:
        self.work.on_ended(ended, now)

    def check(self, now: float) -> None:
        """Starts idle work that is due, after every input."""
        if self.work.is_enabled and self._is_parked():
            self.work.start_if_due(now)

    def _is_parked(self) -> bool:
        current, trainers = self._state.current, self._state.trainers.by_name.values()
        if self._needed or current.is_fenced or current.is_running or not trainers:
            return False
        return all(trainer.state in _AT_REST for trainer in trainers)
