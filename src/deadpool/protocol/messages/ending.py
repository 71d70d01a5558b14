"""How a job ends, and how a node leaves.

The end of a job: ranks finish and are released, or what is left of their state goes to disk.

How a node leaves on purpose: all ranks stand at one version while its ranks move.
"""

from __future__ import annotations

from deadpool.protocol.identity import Generation, Message, Version


class Finished(Message, frozen=True, kw_only=True):
    """The rank has completed its last step. It stays in its loop until every rank has."""

    generation: Generation
    rank: int


class Release(Message, frozen=True, kw_only=True):
    """Every rank has completed its last step, so no step will have to be computed again and trainers may end.
    A fence takes it back (rule 33, a fence takes the release back)."""

    generation: Generation


class GroupsDestroyed(Message, frozen=True, kw_only=True):
    """The script has destroyed all its process groups: if its loop is over, what is left of it needs no other rank."""


class Exits(Message, frozen=True, kw_only=True):
    """The script has asked to end with this code, and not with 0. Sent before anything of it is freed."""

    code: int


class Ping(Message, frozen=True, kw_only=True):
    """Asks a trainer that was released and is idle whether Python still runs in it."""


class Pong(Message, frozen=True, kw_only=True):
    """The answer to Ping, by the monitor thread."""


class Ended(Message, frozen=True, kw_only=True):
    """The rank's process has ended as it should: it had been released, or its script never asked for protection."""

    generation: Generation
    rank: int
    code: int


class Salvage(Message, frozen=True, kw_only=True):
    """The job cannot go on: write these ranks' copies of the version to disk, and say where they are."""

    generation: Generation
    version: Version
    ranks: tuple[int, ...]


class Salvaged(Message, frozen=True, kw_only=True):
    """The answer to Salvage: which ranks' copies are in `folder`, or why they are not."""

    generation: Generation
    ranks: tuple[int, ...]
    folder: str
    failure: str = ""


class Shutdown(Message, frozen=True, kw_only=True):
    """The job is over for this node: end every trainer, then the agent."""

    reason: str
    failed: bool


class Leave(Message, frozen=True, kw_only=True):
    """This node was asked to end. It stays until its ranks run elsewhere and its copies are no longer needed."""

    reason: str


class Stand(Message, frozen=True, kw_only=True):
    """Every rank captures this version, scheduled or not, and stops there. A rank that is already past it stops at the
    next version it comes to and says which; it is then told again."""

    generation: Generation
    number: int


class Standing(Message, frozen=True, kw_only=True):
    """The rank has come to the boundary of this version and begins no step before it is told to. It has declared its
    capture of the version before."""

    generation: Generation
    rank: int
    number: int


class Proceed(Message, frozen=True, kw_only=True):
    """No rank has to stand any longer."""

    generation: Generation
