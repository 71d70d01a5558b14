"""What people and pools ask of a job.

What people ask of a job and read of it: commands, answers, facts, events, injected faults, the doctor.

What a pool of spare machines and the machines in it say to each other.

A pool decides where trainers are parked; which job gets a machine is decided on the machine itself.
"""

from __future__ import annotations

from typing import Any

from deadpool.protocol.identity import FreeFormMessage, Message, Value
from deadpool.protocol.messages.joining import Peer


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

    Without `at` it is sent now. Otherwise it is sent at that moment (deadpool.config.orders) of step or version
    `step`, by the first trainer that reaches it.

    With `flips` no signal is sent: one bit of this kind flips on the device of this rank, in step `step` or after its
    optimizer; without a step, in the next one that is audited; or, in the agent, in the first snapshot after it. If it
    `lasts`, one flips in each later step too, whichever rank the device serves.
    """

    signal: int
    rank: int | None
    at: str | None = None
    step: int | None = None
    flips: str = ""  # a key of FLIPS (deadpool.config.orders)
    lasts: bool = False
    ranks_per_node: int = 1  # ranks of the same place on their nodes have the same device

    def hits(self, rank: int) -> bool:
        if self.rank is None or self.rank == rank:
            return True
        return self.lasts and rank % self.ranks_per_node == self.rank % self.ranks_per_node


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


class PoolJob(Value, frozen=True, kw_only=True):
    """A job that a pool serves. It names a file with the job's secret; the pool itself never reads that file."""

    name: str
    coordinators: str  # HOST:PORT of all, separated by commas
    secret_file: str
    script: tuple[str, ...]
    folder: str  # in which the script runs
    priority: int = 0
    memory_bytes: int = 0  # that its parked trainers take on a machine
    parked_most: int = 0  # machines that keep trainers parked for it; 0: all
    leased_most: int = 0  # machines that it may have at once; 0: all
    tls: str = "off"
    options: tuple[str, ...] = ()  # further flags of its agents


class MachineState(Message, frozen=True, kw_only=True):
    """A machine of the pool says what it is doing, when it joins and whenever that has changed."""

    host: str
    memory_bytes: int
    parked: tuple[str, ...]  # jobs that its agents are in
    ready: tuple[str, ...]  # those of them whose trainers are rehearsed
    leased_to: str = ""  # empty: it is free
    work: str = ""  # what its command of --while-parked is doing
    machine: str = ""  # which one it is, for people and to tell two of one name apart


class Assignment(Message, frozen=True, kw_only=True):
    """The jobs that a machine is to keep trainers parked for, the most important first."""

    jobs: tuple[PoolJob, ...]


class PoolNotice(Message, frozen=True, kw_only=True):
    """What whoever looks after a machine should know."""

    text: str
