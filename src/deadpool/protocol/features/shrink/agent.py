"""What the scripts of a node say of the shares of a step, which decides whether the job can shrink."""

from __future__ import annotations

from deadpool.protocol.agent.seams import AgentCore, AgentPart
from deadpool.protocol.agent.trainers.trainers import Trainer
from deadpool.protocol.identity import FeatureMessage
from deadpool.protocol.messages import UsesShares


class SharesUsed(AgentPart):
    def __init__(self, core: AgentCore) -> None:
        self._state = core.state

    def on_trainer_message(self, trainer: Trainer, message: FeatureMessage) -> None:
        """A process that is seated later as the same rank is told to use them too: the script is the same."""
        if isinstance(message, UsesShares):
            trainer.shares = message.shares
            if trainer.rank is not None:
                self._state.trainers.shares_of[trainer.rank] = message.shares
            self._state.report_trainers()
