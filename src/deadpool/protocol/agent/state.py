"""What all parts of an agent share: its generation and phase, its trainers, its copies, and the effects of this step.

Every part appends to the same list of effects, so effects leave in the order in which they were decided.
"""

from __future__ import annotations

from deadpool.events.event import Event
from deadpool.protocol.agent.copies.copies import Copies, JointCopiesOf
from deadpool.protocol.agent.copies.joint import JointCopies
from deadpool.protocol.agent.phase import GenerationState
from deadpool.protocol.agent.trainers.trainers import NodeTrainers
from deadpool.protocol.causes import EndCause
from deadpool.protocol.effects import AgentEffect, Emit, Finish, ToCoordinator
from deadpool.protocol.messages import AgentMessage, Audit, End, Settings, StepAudit, TrainerInfo, Trainers


class AgentState:
    def __init__(self, node: str, joint: JointCopiesOf = JointCopies) -> None:
        self.node = node
        self.current = GenerationState()
        self.settings: Settings | None = None  # None: no coordinator has welcomed this node yet
        self.audit: Audit | StepAudit | None = (
            None  # that is under way; trainers that are seated meanwhile are told of it
        )
        self._told_trainers: tuple[TrainerInfo, ...] | None = None
        self.effects: list[AgentEffect] = []
        self.trainers = NodeTrainers(node, self.effects)
        self.copies = Copies(self.current, self.effects, joint)

    def tell_coordinator(self, message: AgentMessage) -> None:
        self.effects.append(ToCoordinator(message=message))

    def report_trainers(self) -> None:
        """Where something has changed: after most plans nothing has, on most of thousands of nodes."""
        infos = self.trainers.infos()
        if infos != self._told_trainers:
            self._told_trainers = infos
            self.tell_coordinator(Trainers(trainers=infos))

    def forget_told(self) -> None:
        """A coordinator that has just welcomed this node was told nothing yet."""
        self._told_trainers = None

    def emit(self, what: str, *, rank: int | None = None, step: int | None = None, **detail: object) -> None:
        event = Event(
            what=what,
            cause=self.current.cause or None,
            generation=str(self.current.generation),
            node=self.node,
            rank=rank,
            step=step,
            detail=detail,
        )
        self.effects.append(Emit(event=event))

    def end(self, cause: EndCause, reason: str, *, failed: bool) -> None:
        self.current.end()
        for trainer in self.trainers.by_name.values():
            self.trainers.tell(trainer, End(reason=reason))
            self.trainers.kill(trainer, reason)
        self.effects.append(Finish(failed=failed, cause=cause, reason=reason))

    def take_effects(self) -> list[AgentEffect]:
        effects = self.effects.copy()
        self.effects.clear()
        return effects
