"""What the coordinator says while it decides one input: messages to agents, events, and the end.

`Coordinator` and `Commits` write into the same one, so effects keep the order in which they were decided.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deadpool.events import Event
from deadpool.protocol.effects import CoordinatorEffect, Drop, Emit, Finish, ToAgent
from deadpool.protocol.identity import NO_GENERATION, Generation


class Outbox:
    def __init__(self, term: int) -> None:
        self.term = term
        self.generation: Generation = NO_GENERATION  # in whose name it speaks
        self.cause = ""
        self._effects: list[CoordinatorEffect] = []

    def take(self) -> list[CoordinatorEffect]:
        """All that was said since the last time."""
        effects, self._effects = self._effects, []
        return effects

    def send(self, node: str, message: Any) -> None:
        self._effects.append(ToAgent(node=node, term=self.term, message=message))

    def send_each(self, nodes: Iterable[str], message: Any) -> None:
        for node in nodes:
            self.send(node, message)

    def drop(self, node: str) -> None:
        self._effects.append(Drop(node=node))

    def finish(self, reason: str, *, failed: bool) -> None:
        self._effects.append(Finish(failed=failed, reason=reason))

    def emit(
        self,
        what: str,
        *,
        node: str | None = None,
        rank: int | None = None,
        step: int | None = None,
        **detail: Any,
    ) -> None:
        event = Event(
            what=what,
            cause=self.cause or None,
            generation=str(self.generation),
            node=node,
            rank=rank,
            step=step,
            detail=detail,
        )
        self._effects.append(Emit(event=event))
