"""How a node leaves on purpose: all ranks stand at one version while its ranks move."""

from __future__ import annotations

from deadpool.protocol.identity import Generation
from deadpool.protocol.structs import Message


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
