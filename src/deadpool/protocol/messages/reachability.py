"""Which nodes reach each other, where the coordinator suspects that some do not."""

from __future__ import annotations

from deadpool.protocol.identity import Generation
from deadpool.protocol.structs import Message, Value
from deadpool.protocol.topology import Address


class Peer(Value, frozen=True, kw_only=True):
    """Another node, and where its data plane listens."""

    node: str
    address: Address


class Probe(Message, frozen=True, kw_only=True):
    """Try to reach these nodes. Asked at Go, and whenever the job is late."""

    generation: Generation
    number: int
    peers: tuple[Peer, ...]


class Probed(Message, frozen=True, kw_only=True):
    """The answer to Probe: which of these nodes cannot be reached, of those that could be before."""

    generation: Generation
    number: int
    unreachable: tuple[str, ...]
