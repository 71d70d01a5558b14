"""Where the agent calls optional features.

A feature derives its part from `AgentPart` and overrides what it has a say in; the rest does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.trainers import Trainer
from deadpool.protocol.inputs import FeatureInput
from deadpool.protocol.structs import FeatureMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCore:
    """The parts of the agent that a feature may use."""

    state: AgentState


class AgentPart:
    def on_input(self, input: FeatureInput, now: float) -> None:
        """It may be another feature's."""

    def on_trainer_message(self, trainer: Trainer, message: FeatureMessage) -> None:
        """It may be another feature's."""

    def on_welcome(self) -> None:
        """A coordinator has welcomed this node: what was told to another one, this one has not heard."""

    def on_heartbeat(self, now: float) -> None:
        """One was sent. What is told beside it costs no wake-up of its own."""
