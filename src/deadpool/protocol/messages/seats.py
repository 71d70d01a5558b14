"""The messages from a plan to Go: each rank's process takes its seat, loads its state and connects to the others."""

from __future__ import annotations

from deadpool.protocol.identity import Address, Generation, Message, Schedule, Version
from deadpool.protocol.messages.copies import SlotRef
from deadpool.protocol.seal import Seal


class Seat(Message, frozen=True, kw_only=True):
    """Take this rank. Without `resume` the script runs under real groups, otherwise under fake ones until it is
    restored."""

    generation: Generation
    cause: str
    rank: int
    resume: Version | None
    schedule: Schedule


class Arriving(Message, frozen=True, kw_only=True):
    """The resume version is being written into `slot`. Restore follows when it is there and as sealed.

    A trainer that loads from the slot meanwhile gives up its live state, and holds nothing valid before Restore comes.
    Nothing is promised: a fence may come instead.
    """

    generation: Generation
    slot: SlotRef
    seal: Seal


class Restore(Message, frozen=True, kw_only=True):
    """Load `version` and stand at it. Without `slot` the node has no sealed copy, and the live state, which is clean,
    stays."""

    generation: Generation
    version: Version
    slot: SlotRef | None
    schedule: Schedule
    capture: bool  # this rank has no sealed copy of the resume version: capture it again after Go
    carried: tuple[tuple[int, SlotRef], ...] = ()  # ranks whose work this process does too; slots with their records


class Prepared(Message, frozen=True, kw_only=True):
    """The rank's trainer is at rest with the resume version loaded. `store` is its rendezvous server.

    `agreement` says what its frameworks have agreed on with their peers in earlier steps.
    """

    generation: Generation
    rank: int
    store: Address
    agreement: str = ""


class NodePrepared(Message, frozen=True, kw_only=True):
    """The node says that these of its ranks are prepared: all of them, or all so far where some are late. It says so
    only after it has dropped what is newer than the resume version.

    `store` is given by the node of the rank that the plan names for it. `agreements` are those of these ranks, each
    once: one value, unless ranks differ.
    """

    generation: Generation
    ranks: tuple[int, ...]
    store: Address | None = None
    agreements: tuple[str, ...] = ("",)


class Connect(Message, frozen=True, kw_only=True):
    """All old groups are gone and every rank is at rest: make the new groups, and meet at `store`.

    Unless `agreed`, the frameworks of some rank have agreed on something else than the others', so that all ranks
    have to forget what was agreed. Groups are made among the ranks that have a process.
    """

    generation: Generation
    store: Address
    agreed: bool = True
    carried: tuple[tuple[int, int], ...] = ()  # ranks without a process of their own, and the ranks that carry them


class Connected(Message, frozen=True, kw_only=True):
    """The rank's trainer has made its new process groups."""

    generation: Generation
    rank: int


class NodeConnected(Message, frozen=True, kw_only=True):
    """The node says that these of its ranks are connected: all of them, or all so far where some are late."""

    generation: Generation
    ranks: tuple[int, ...]


class Go(Message, frozen=True, kw_only=True):
    """Every rank is connected: the generation runs from here on."""

    generation: Generation
    cause: str
