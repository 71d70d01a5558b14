"""Where the agent calls optional features.

A feature derives its part from `AgentPart` and overrides what it has a say in; the rest does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.readiness import NodeRecordings
from deadpool.protocol.agent.trainers.seating import Seating
from deadpool.protocol.agent.trainers.trainers import Trainer
from deadpool.protocol.identity import FeatureMessage
from deadpool.protocol.inputs import FeatureInput
from deadpool.protocol.messages import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCore:
    """What a feature may use of the agent."""

    state: AgentState
    seating: Seating
    recordings: NodeRecordings
    shared: bool = False  # its machine may serve other jobs
    works: bool = False  # there is a command to run while it is parked


class AgentPart:
    # --- what is told -------------------------------------------------------------------------------------------------

    def on_order(self, order: FeatureMessage) -> None:
        """The coordinator says so, in this generation or of none. The order may be another feature's."""

    def on_input(self, input: FeatureInput, now: float) -> Plan | None:
        """The input may be another feature's. Returns the plan that has waited for it, if one did."""
        return None

    def on_trainer_message(self, trainer: Trainer, message: FeatureMessage) -> None:
        """The message may be another feature's."""

    def on_welcome(self) -> None:
        """A coordinator has welcomed this node: what was told to another one, this one has not heard."""

    def on_heartbeat(self, now: float) -> None:
        """One was sent. What is told beside it costs no wake-up of its own."""

    # --- a recovery ---------------------------------------------------------------------------------------------------

    def on_needed(self) -> None:
        """This spare will most likely get ranks; only the plan says so."""

    def permits(self, plan: Plan) -> bool:
        """Whether the plan can be carried out now. Who refuses it returns it from `on_input` when it can."""
        return True

    def on_plan(self, plan: Plan) -> None:
        """The plan is carried out now."""

    # --- time, and for status -----------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """The agent calls this after every input."""

    def deadline(self) -> float | None:
        """When it wants to be looked at again, at the latest."""
        return None

    def facts(self) -> dict[str, object]:
        return {}
