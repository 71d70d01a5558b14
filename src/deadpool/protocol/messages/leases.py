"""A spare whose machine serves several jobs: it is told when it is needed, and says if another job has the machine."""

from __future__ import annotations

from deadpool.protocol.identity import Generation
from deadpool.protocol.structs import Message


class Needed(Message, frozen=True, kw_only=True):
    """Sent to a spare with the fence: the plan of this generation will most likely seat it. The spare takes the lease
    of its machine and ends the work that it does while it is parked. Only the plan itself gives it a seat."""

    generation: Generation


class Unavailable(Message, frozen=True, kw_only=True):
    """The last message of a node whose machine is leased to another job."""

    reason: str
