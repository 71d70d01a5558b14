"""The part of an agent whose machine may serve other jobs, or has a command to run while it is parked."""

from __future__ import annotations

from typing import Any, assert_never

from deadpool.protocol.agent.seams import AgentCore, AgentPart
from deadpool.protocol.features.leases.agent.idle_time import IdleTime
from deadpool.protocol.features.leases.agent.lease import MachineLease
from deadpool.protocol.inputs import FeatureInput, LeasedElsewhere, LeaseTaken, ParkedWorkEnded
from deadpool.protocol.messages import Plan

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

    def facts(self) -> dict[str, Any]:
        work = self._idle_time.work
        return {"parked_work": work.facts()} if work.starts else {}
