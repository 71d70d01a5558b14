"""A node as its agent sees it: in which generation, fenced or not, with which trainers and copies.

The parts of the agent share one `Station`, and all that they say goes out through it in the order in which it was said.
"""

from __future__ import annotations

from typing import Any

from deadpool.events import Event
from deadpool.protocol.agent.copies import Storehouse
from deadpool.protocol.agent.trainers import Crew
from deadpool.protocol.effects import AgentEffect, Emit, Finish, ToCoordinator
from deadpool.protocol.identity import NO_GENERATION, Generation
from deadpool.protocol.messages import Durable, End, Settings, Trainers


class Station:
    def __init__(self, node: str) -> None:
        self.node = node
        self.settings: Settings | None = None  # None: nobody has welcomed us yet
        self.generation: Generation = NO_GENERATION
        self.cause = ""
        self.fenced = False
        self.ending = False
        self.durable: Durable | None = None  # the newest checkpoint that the script told of
        self.effects: list[AgentEffect] = []
        self.crew = Crew(node, self.effects)
        self.store = Storehouse(self.effects)

    def enter(self, generation: Generation, cause: str, *, fenced: bool) -> None:
        self.generation, self.cause, self.fenced = generation, cause, fenced

    def tell_coordinator(self, message: Any) -> None:
        self.effects.append(ToCoordinator(message=message))

    def report_trainers(self) -> None:
        self.tell_coordinator(Trainers(trainers=self.crew.infos()))

    def emit(self, what: str, *, rank: int | None = None, step: int | None = None, **detail: Any) -> None:
        event = Event(
            what=what,
            cause=self.cause or None,
            generation=str(self.generation),
            node=self.node,
            rank=rank,
            step=step,
            detail=detail,
        )
        self.effects.append(Emit(event=event))

    def end(self, reason: str, *, failed: bool) -> None:
        self.ending = True
        for trainer in self.crew.trainers.values():
            self.crew.tell(trainer, End(reason=reason))
            self.crew.kill(trainer, reason)
        self.effects.append(Finish(failed=failed, reason=reason))

    def take(self) -> list[AgentEffect]:
        """All that was said since the last time."""
        effects = self.effects.copy()
        self.effects.clear()
        return effects
