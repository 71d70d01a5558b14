"""Whether a spare's machine is this job's, and what it does while it waits.

`LeaseState` and `MachineLease`: whether this node's machine serves this job. A machine of a pool has an agent in
each job that it may have to serve.

Rule 31 (one job per machine): an agent takes the machine's lease before it carries out a plan that seats it, and
the lease is a lock that only one process can have. An agent that does not get it leaves its job, which plans without
it.

`IdleTime`: what a spare does while it is parked: it runs the user's command, until a fence says that the spare is
needed.

The command is started when all rehearsals are done. It is not stopped for another rehearsal: it is niced, and a
rehearsal is not urgent unless the spare is needed, which stops the command anyway.

`SharedMachine`: the part of an agent whose machine may serve other jobs, or has a command to run while it is parked.
"""

from __future__ import annotations

from enum import Enum
from typing import assert_never

from deadpool.protocol.agent.seams import AgentCore, AgentPart
from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.trainers import TrainerState
from deadpool.protocol.causes import EndCause
from deadpool.protocol.effects import ReleaseLease, TakeLease
from deadpool.protocol.features.leases.parked_work import ParkedWork
from deadpool.protocol.inputs import FeatureInput, LeasedElsewhere, LeaseTaken, ParkedWorkEnded
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


LeaseInput = LeaseTaken | LeasedElsewhere | ParkedWorkEnded


class SharedMachine(AgentPart):
    def __init__(self, core: AgentCore) -> None:
        self._lease = MachineLease(core.state, shared=core.shared)
        self._idle_time = IdleTime(core.state, works=core.works)

    def on_input(self, input: FeatureInput, now: float) -> Plan | None:
        return self._on_input(input, now) if isinstance(input, LeaseInput) else None

    def _on_input(self, input: LeaseInput, now: float) -> Plan | None:
        match input:
            case LeaseTaken():
                return self._lease.on_taken()
            case LeasedElsewhere(owner=owner):
                self._lease.on_held_elsewhere(owner)
            case ParkedWorkEnded():
                self._idle_time.on_ended(input, now)
            case _ as never:
                assert_never(never)
        return None

    def on_needed(self) -> None:
        self._idle_time.on_needed()
        self._lease.ask()

    def permits(self, plan: Plan) -> bool:
        return self._lease.permits(plan)

    def on_plan(self, plan: Plan) -> None:
        self._idle_time.on_plan(plan)

    def check(self, now: float) -> None:
        self._idle_time.check(now)

    def deadline(self) -> float | None:
        return self._idle_time.work.deadline()

    def facts(self) -> dict[str, object]:
        work = self._idle_time.work
        return {"parked_work": work.facts()} if work.starts else {}
