"""Where the agent calls optional features.

A feature derives its part from `AgentPart` and overrides what it has a say in; the rest does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.trainers import Trainer
from deadpool.protocol.structs import FeatureMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCore:
    """The parts of the agent that a feature may use."""

    state: AgentState


class AgentPart:
    def on_trainer_message(self, trainer: Trainer, message: FeatureMessage) -> None:
        """It may be another feature's."""
