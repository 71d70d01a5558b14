"""What the ranks of a node tell of an audited step goes to the coordinator."""

from __future__ import annotations

from deadpool.protocol.agent.seams import AgentCore, AgentPart
from deadpool.protocol.agent.trainers.trainers import Trainer, TrainerState
from deadpool.protocol.identity import FeatureMessage
from deadpool.protocol.messages import StepDigests


class ToldSteps(AgentPart):
    def __init__(self, core: AgentCore) -> None:
        self._state = core.state

    def on_trainer_message(self, trainer: Trainer, message: FeatureMessage) -> None:
        """What is compared has to be of all ranks in one generation, so under a fence it is too late."""
        if not isinstance(message, StepDigests) or self._state.current.is_fenced:
            return
        if trainer.state is TrainerState.SEATED and trainer.rank == message.rank:
            self._state.tell_coordinator(message)
