"""How well a node is: signs of illness, and the memory that it has left. Told beside heartbeats, when it changes."""

from __future__ import annotations

from deadpool.protocol.structs import FeatureMessage, Value

SIGNS_AT_MOST = 8
DETAIL_AT_MOST = 120
"""Characters. What a driver writes into the kernel's log may be long, and is not ours."""


class Sign(Value, frozen=True, kw_only=True):
    """Something that speaks for an illness of the node. `protocol/health.py` lists the kinds and what grades mean."""

    kind: str
    grade: int
    count: int = 1  # how often, within the window that the job watches
    detail: str = ""  # in the words of its source


class Health(FeatureMessage, frozen=True, kw_only=True):
    """The signs that a node shows now, none if it is sound. It holds in every generation."""

    signs: tuple[Sign, ...]
    memory_bytes: int = 0  # of the machine or of its cgroup; 0: not known
    available_bytes: int = 0  # of it, for more copies
    copies_bytes: int = 0  # that the node's arena takes, with the copies of others
    own_bytes: int = 0  # of these, for the copies of its own ranks
