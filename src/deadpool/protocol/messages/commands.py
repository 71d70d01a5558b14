"""What people ask of a job and read of it: commands, answers, facts, events, injected faults, the doctor."""

from __future__ import annotations

from typing import Any

from deadpool.protocol.messages.reachability import Peer
from deadpool.protocol.structs import FreeFormMessage, Message


class Ask(FreeFormMessage, frozen=True, kw_only=True):
    """A command line asks the coordinator for something, by name."""

    what: str
    arguments: dict[str, Any]


class Answer(FreeFormMessage, frozen=True, kw_only=True):
    """The coordinator's answer to a command line. With `error`, the request was refused."""

    body: dict[str, Any]
    error: str | None = None


class Facts(FreeFormMessage, frozen=True, kw_only=True):
    """What a node says about itself for people to read: process ids, bytes in its arena, bandwidth reached."""

    facts: dict[str, Any]


class Report(FreeFormMessage, frozen=True, kw_only=True):
    """Event records on their way to the job's event log."""

    records: tuple[dict[str, Any], ...]


class Injection(Message, frozen=True, kw_only=True):
    """An injected fault: `signal` is sent to one trainer, or to the whole node. Cores do not know of it.

    Without `at` it is sent now. Otherwise it is sent at that moment (deadpool.config.fault_orders) of step or version
    `step`, by the first trainer that reaches it.
    """

    signal: int
    rank: int | None
    at: str | None = None
    step: int | None = None


class Injected(Message, frozen=True, kw_only=True):
    """The last message of a trainer that sends itself the injected signal; its agent sends it to the rest of the node.
    Unless `hit`, the step or version is past, and the moment did not come in it."""

    injection: Injection
    hit: bool


class Examine(Message, frozen=True, kw_only=True):
    """Examine your node and say which of these peers it does not reach, for `deadpool doctor`. Cores do not know of
    it."""

    number: int
    peers: tuple[Peer, ...]


class Examined(FreeFormMessage, frozen=True, kw_only=True):
    """An agent's answer to Examine: what its doctor found, and when it was asked and answered by its own clock."""

    number: int
    body: dict[str, Any]
