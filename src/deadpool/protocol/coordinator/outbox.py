"""What a coordinator works by, and what it says.

`Deadlines`, `FaultLimit` and `CoordinatorConfig`: what every coordinator of one job works by: settings, time limits,
the capture schedule, the limit of faults.

`Context` and `Outbox`: what the coordinator says while it decides one input: messages to agents, events, and the end
of the job.

All parts write into the same outbox, so effects keep the order in which they were decided.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from deadpool.events.event import Event
from deadpool.protocol.causes import EndCause
from deadpool.protocol.effects import CoordinatorEffect, Drop, Emit, Finish, ToAgent
from deadpool.protocol.identity import Generation, Schedule
from deadpool.protocol.messages import OrderMessage, Settings
from deadpool.protocol.schemes import Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long each wait may last, in seconds. All are derived from one timeout in outbox.py."""

    node_s: float  # silence after which a node is lost
    fence_s: float  # for every survivor to come to rest
    prepare_s: float  # for newcomers to build and load
    connect_s: float  # for all groups to be made
    spare_wait_s: float  # for a spare to join when none is left
    return_s: float = 10.0  # for a silent node to come back with copies that no other node has
    hang_s: float  # without one completed step anywhere, after which the job hangs; 0: derived from its step times


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultLimit:
    """How many faults of one node, within which time, put it into quarantine. 0: it never is."""

    faults: int = 3
    within_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    settings: Settings  # what agents are told of it
    deadlines: Deadlines
    schedule: Schedule
    scheme: Scheme | None = None  # None: as many copies as the layout has holders
    fault_limit: FaultLimit = field(default_factory=FaultLimit)

    @property
    def is_alone(self) -> bool:
        """A coordinator can be found at one place only, so there is never more than one."""
        return len(self.settings.coordinators) <= 1


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
        **detail: object,
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
