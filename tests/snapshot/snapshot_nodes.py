"""Nodes for the tests of the data plane: an owner with a filled slot, a holder with a server, half-done transfers."""

from __future__ import annotations

import queue
import socket
from typing import Any

import numpy as np
from msgspec.structs import replace

from deadpool.protocol.causes import Refusal
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.seal import Digest, Extent, Geometry, Region, Seal
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.arena.slot import pack_seal, read_seal, region
from deadpool.snapshot.transfer import FoundCopy, PullRequest, PushRequest, TransferRefused, TransferServer
from deadpool.snapshot.transfer.channel import authenticate
from deadpool.snapshot.transfer.connection import Connection
from deadpool.snapshot.transfer.frames import (
    Kind,
    chunks_of,
    pack_chunk,
    pack_frame,
    pack_geometry,
)
from deadpool.snapshot.transfer.transport import Transport
from deadpool.wire.credentials import Credentials
from deadpool_lab.workload.sealed_slot import seal_slot

MEMBER = Credentials(b"s" * 32)
GENERATION = Generation(1, 3)
VERSION = Version(Generation(1, 2), 7)
BIG_BYTES = 20 << 20
GEOMETRY = Geometry(record_capacity=10_000, unique_bytes=BIG_BYTES, replica_bytes=9 << 20)
EXTENT = Extent(record_bytes=777, unique_bytes=BIG_BYTES - 13, replica_bytes=(9 << 20) - 1)
SMALL_EXTENT = Extent(record_bytes=777, unique_bytes=0, replica_bytes=0)
TRANSFER = b"t" * 16
WAIT_S = 300.0
DEADLINE_S = 60.0
"""Of streams between peers that are well: no machine is so slow that they seem silent."""
SILENCE_S = 4.0
"""Of streams to a peer that falls silent: tests wait for it, and a handshake ends within it."""


class Owner:
    """A node with one sealed slot of random bytes."""

    def __init__(self, rank: int = 3, extent: Extent = EXTENT, seed: int = 0) -> None:
        self.segment = Segment.create("owner", GEOMETRY, 2)
        slot = self.segment.slot(1)
        noise = np.random.default_rng(seed)
        for name in ("record", "unique", "replica"):
            target = np.frombuffer(region(slot, GEOMETRY, extent, name), dtype=np.uint8)
            target[:] = noise.integers(0, 256, len(target), dtype=np.uint8)
        self.seal = seal_slot(slot, GEOMETRY, rank=rank, version=VERSION, extent=extent)
        self.offset = self.segment.offset(1)

    def bytes_of(self, name) -> bytes:
        return bytes(region(self.segment.slot(1), GEOMETRY, self.seal.extent, name))

    def flip_a_byte(self, name) -> None:
        target = region(self.segment.slot(1), GEOMETRY, self.seal.extent, name)
        target[len(target) // 2] ^= 1

    def found(self, rank: int, version: Version) -> FoundCopy | None:
        if (rank, version) != (self.seal.rank, self.seal.version):
            return None
        return FoundCopy(fd=self.segment.fd, offset=self.offset, seal=self.seal, geometry=GEOMETRY)

    def close(self) -> None:
        self.segment.close()


class Holder:
    """A node that stores snapshots and, if it has an owner's slot, serves that. Outcomes arrive in a queue."""

    def __init__(
        self,
        *,
        gives: Owner | None = None,
        refuses: str | None = None,
        geometry: Geometry = GEOMETRY,
        deadline_s: float = DEADLINE_S,
        credentials: Credentials = MEMBER,
        transport: Transport | None = None,
    ) -> None:
        self.segment = Segment.create("holder", geometry, 1)
        self.outcomes: queue.Queue[tuple[str, Seal, str]] = queue.Queue()
        self.opened: queue.Queue[tuple[Seal, Generation, Geometry]] = queue.Queue()
        self._refuses = refuses
        self.server = TransferServer(
            host="127.0.0.1",
            credentials=credentials,
            open=self._open,
            stored=lambda seal: self.outcomes.put(("stored", seal, "")),
            dropped=lambda seal, reason: self.outcomes.put(("dropped", seal, reason)),
            find=gives.found if gives else lambda rank, version: None,
            deadline_s=deadline_s,
            transport=transport,
        )
        self.address = self.server.start()

    def _open(self, seal: Seal, generation: Generation, geometry: Geometry) -> memoryview | TransferRefused:
        self.opened.put((seal, generation, geometry))
        return TransferRefused(refusal=Refusal.NO_ROOM, reason=self._refuses) if self._refuses else self.segment.slot(0)

    def outcome(self) -> tuple[str, Seal, str]:
        return self.outcomes.get(timeout=WAIT_S)

    def header(self) -> Seal | None:
        return read_seal(self.segment.slot(0))

    def bytes_of(self, seal: Seal, name) -> bytes:
        return bytes(region(self.segment.slot(0), self.segment.geometry, seal.extent, name))

    def close(self) -> None:
        self.server.close()
        self.segment.close()


def greeted(address, generation: Generation = GENERATION, credentials: Credentials = MEMBER) -> Connection:
    """Opens a stream to a server, and completes the handshake."""
    connection = Connection(socket.create_connection(address), f"{address[0]}:{address[1]}", DEADLINE_S)
    authenticate(connection, credentials, "client")
    connection.generation = generation
    connection.send(Kind.HELLO, [])
    connection.expect(Kind.ACCEPT)
    return connection


def push_half(address, owner: Owner) -> Connection:
    """Begins a push that sends half of a chunk and no more."""
    connection = greeted(address)
    seal = replace(owner.seal, full=True)
    connection.send(Kind.PUSH, [TRANSFER, pack_seal(seal), pack_geometry(GEOMETRY)])
    connection.expect(Kind.ACCEPT)
    chunk = chunks_of(seal.extent, ("unique",))[0]
    frame = pack_frame(Kind.DATA, GENERATION, [TRANSFER, *pack_chunk(chunk)], chunk.size)
    connection._sock.sendall(frame + bytes(chunk.size // 2))
    return connection


def accept_greeted(listener: socket.socket) -> Connection:
    """Accepts a stream and completes the handshake, for servers that misbehave afterwards."""
    connection = Connection(listener.accept()[0], "client", DEADLINE_S)
    authenticate(connection, MEMBER, "server")
    connection.generation = connection.receive().head.generation
    connection.send(Kind.ACCEPT, [])
    return connection


def accept_half_of_a_push(listener: socket.socket) -> Connection:
    connection = accept_greeted(listener)
    connection.receive()
    connection.send(Kind.ACCEPT, [])
    connection.receive_into(memoryview(bytearray(500)))
    return connection


def push_request(address, owner: Owner, *, full: bool = True, generation: Generation = GENERATION) -> PushRequest:
    return PushRequest(
        address=tuple(address),
        generation=generation,
        seal=owner.seal,
        geometry=GEOMETRY,
        fd=owner.segment.fd,
        slot_offset=owner.offset,
        full=full,
    )


def pull_request(address, into: memoryview, digest: Digest, *regions: Region, **changes: Any) -> PullRequest:
    named = {"rank": 3, "version": VERSION, "geometry": GEOMETRY, "generation": GENERATION, **changes}
    return PullRequest(address=address, into=into, digest=digest, regions=regions or ("unique",), **named)
