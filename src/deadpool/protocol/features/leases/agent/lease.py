"""Whether this node's machine serves this job. A machine of a pool has an agent in each job that it may have to serve.

Rule 31 (one job per machine): an agent takes the machine's lease before it acknowledges a plan that seats it, and the
lease is a lock that only one process can have. An agent that does not get it leaves its job, which plans without it.
"""

from __future__ import annotations

from enum import Enum

from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.causes import EndCause
from deadpool.protocol.effects import ReleaseLease, TakeLease
from deadpool.protocol.messages import Plan, Unavailable


class LeaseState(Enum):
    NONE = "none"  # not asked for: any job may take the machine
    ASKED = "asked"
    HELD = "held"


class MachineLease:
    def __init__(self, state: AgentState, *, shared: bool) -> None:
        """`shared`: other jobs may take this node's machine. Otherwise there is nothing to ask for."""
        self._agent = state
        self.state = LeaseState.NONE if shared else LeaseState.HELD
        self._shared = shared
        self._plan: Plan | None = None  # waits for the lease
        self._was_seated = False
        self._is_unneeded = False  # a plan without a rank for this node came before the lease

    def ask(self) -> None:
        """A new need: what plans have said before does not matter."""
        self._is_unneeded = False
        if self.state is LeaseState.NONE:
            self.state = LeaseState.ASKED
            self._agent.effects.append(TakeLease())

    def permits(self, plan: Plan) -> bool:
        """Whether the plan can be carried out now. One that cannot is kept until the lease is there."""
        if plan.orders and self.state is not LeaseState.HELD:
            self._plan = plan
            self.ask()
            return False
        if plan.orders:
            self._was_seated = True
        else:
            self._release_unneeded()
        return True

    def _release_unneeded(self) -> None:
        """A node that was seated keeps the lease until it ends: the next recovery may need its copies."""
        self._plan = None
        if self.state is LeaseState.ASKED:
            self._is_unneeded = True
        if self._shared and self.state is LeaseState.HELD and not self._was_seated:
            self.state = LeaseState.NONE
            self._agent.effects.append(ReleaseLease())
            self._agent.emit("lease_released", reason="the plan gives this node no rank")

    def on_taken(self) -> Plan | None:
        """Returns the plan that waited for it, if one did."""
        self.state = LeaseState.HELD
        self._agent.emit("lease_taken")
        waiting, self._plan = self._plan, None
        if self._is_unneeded and waiting is None:
            self._release_unneeded()
        self._is_unneeded = False
        return waiting

    def on_held_elsewhere(self, owner: str) -> None:
        """Found when the lease was asked for, or at a look from time to time. The node leaves by itself, so that no
        answer of a coordinator is needed for it."""
        if self.state is LeaseState.HELD:
            return
        reason = f"its machine is leased to {owner}"
        self._agent.emit("lease_refused", reason=reason, needed=self.state is LeaseState.ASKED)
        self._agent.tell_coordinator(Unavailable(reason=reason))
        self._agent.end(EndCause.LEASED_ELSEWHERE, f"node {self._agent.node} leaves: {reason}", failed=False)
