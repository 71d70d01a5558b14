"""What the coordinator says while it decides one input: messages to agents, events, and the end of the job.

All parts write into the same outbox, so effects keep the order in which they were decided.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from deadpool.events.event import Event
from deadpool.protocol.causes import EndCause
from deadpool.protocol.effects import CoordinatorEffect, Drop, Emit, Finish, ToAgent
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import OrderMessage


class Context(Protocol):
    """What every message and every event names. The job's state keeps it."""

    @property
    def term(self) -> int: ...

    @property
    def generation(self) -> Generation: ...

    @property
    def cause(self) -> str: ...


class Outbox:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._effects: list[CoordinatorEffect] = []

    @property
    def generation(self) -> Generation:
        """The generation that messages are sent in."""
        return self._context.generation

    def take(self) -> list[CoordinatorEffect]:
        """Everything that was written since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def send(self, node: str, message: OrderMessage) -> None:
        self._effects.append(ToAgent(node=node, term=self._context.term, message=message))

    def send_each(self, nodes: Iterable[str], message: OrderMessage) -> None:
        term = self._context.term
        self._effects += [ToAgent(node=node, term=term, message=message) for node in nodes]

    def drop(self, node: str) -> None:
        self._effects.append(Drop(node=node))

    def finish(self, cause: EndCause, reason: str, *, failed: bool) -> None:
        self._effects.append(Finish(failed=failed, cause=cause, reason=reason))

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
            cause=self._context.cause or None,
            generation=str(self._context.generation),
            node=node,
            rank=rank,
            step=step,
            detail=detail,
        )
        self._effects.append(Emit(event=event))
