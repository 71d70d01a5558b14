"""The client of the data plane, and what it is asked to do.

`TransferClient`: the client of the data plane, one per agent: pushes this node's snapshots to holders and pulls
those of lost ranks.

Both calls block, so the caller makes them in a thread. Streams to a peer stay open between calls, because a push
happens at every captured step.

`PushRequest` and `PullRequest`: what a transfer client is asked to do: one value per snapshot that is pushed or pulled.
A feature that sends something else of a slot derives its request from `SendRequest`.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from deadpool.errors import CopyDamaged, DeadPoolError, TransferError, WireError
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.seal import Digest, Geometry, Region, Seal, extent_of, regions_sent
from deadpool.snapshot.arena.slot import clear_seal, pack_seal, region
from deadpool.snapshot.transfer.channel import Channel, ChannelPool, TransferAddress
from deadpool.snapshot.transfer.connection import Connection, Midway
from deadpool.snapshot.transfer.frames import (
    Chunk,
    Frame,
    Kind,
    chunks_of,
    pack_chunk,
    pack_geometry,
    read_seal_field,
)
from deadpool.snapshot.transfer.session import TRANSFER_ID_BYTES
from deadpool.snapshot.transfer.snapshot_arrival import ArrivedPieces
from deadpool.snapshot.transfer.transport import OverTcp, Transport
from deadpool.snapshot.transfer.windows import read_window, receive_window, show
from deadpool.wire.credentials import Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """A sealed slot of this node of which another node is to get something. The slot must not change before that has
    ended."""

    address: TransferAddress  # of the other node
    generation: Generation
    geometry: Geometry  # of the slot
    fd: int  # of the segment that the slot lies in
    slot_offset: int  # in that segment


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequest(SendRequest):
    """A holder is to store the slot."""

    seal: Seal
    full: bool  # with the replica region


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """Regions of a snapshot that another node has, and the slot that they are to be written into."""

    address: TransferAddress  # of the source
    generation: Generation
    rank: int
    version: Version
    regions: tuple[Region, ...]
    digest: Digest  # that the regions must have, whatever the source says
    geometry: Geometry
    into: memoryview


_STREAM_WORTH_BYTES = 4 << 20  # with less than this per stream a second stream costs more time than it saves
_READS_AHEAD = 2
_PULL_CHUNKS = 32  # a pull has at least so many chunks, if each is at least a piece: the trainer sees its progress

Watch = Callable[[Region, int], None]
"""Is called with the number of leading bytes of a region that have arrived, and with 0 before the first is written."""


class TransferClient:
    def __init__(
        self,
        *,
        credentials: Credentials,
        streams: int = 2,
        deadline_s: float = 10.0,
        transport: Transport | None = None,
    ) -> None:
        self._streams = streams
        self._transport = transport or OverTcp()
        self._pool = ChannelPool(credentials, deadline_s)

    def push(self, request: PushRequest, midway: Midway | None = None) -> int:
        """Store a sealed slot at a holder; returns when the holder has verified and sealed it, else TransferError.

        Returns how many bytes were sent for it. `midway` happens when the first bytes are on their way; the holder
        cannot have all of them before it is over.
        """
        sent, geometry = replace(request.seal, full=request.full), request.geometry
        transfer = secrets.token_bytes(TRANSFER_ID_BYTES)
        with self.channel(request.address, request.generation) as channel:
            before = channel.bytes_sent
            channel.lead.send(Kind.PUSH, [transfer, pack_seal(sent), pack_geometry(geometry)])
            by_window = channel.lead.expect(Kind.ACCEPT).body == [1]
            chunks = chunks_of(sent.extent, regions_sent(sent))
            self.send_chunks(channel, transfer, request, chunks, midway, by_window=by_window)
            return channel.bytes_sent - before

    def send_chunks(
        self,
        channel: Channel,
        transfer: bytes,
        request: SendRequest,
        chunks: list[Chunk],
        midway: Midway | None,
        *,
        by_window: bool = False,
    ) -> None:
        """Sends parts of a slot, over one stream or more, and returns when the peer has stored them. `by_window`: the
        peer may read them itself."""
        todo = deque(chunks)
        first = todo[0] if todo else None

        def send(connection: Connection) -> None:
            while (chunk := _next(todo)) is not None:
                start = request.slot_offset + request.geometry.offset(chunk.region) + chunk.offset
                told = midway if chunk is first else None
                by_bytes = not by_window or (told is not None and told.flips)
                window = None if by_bytes else self._transport.window(request.fd, start, chunk.size)
                if window is not None:
                    if show(connection, transfer, chunk, window, told):
                        continue
                    told = None
                connection.send_data([transfer, *pack_chunk(chunk)], request.fd, start, chunk.size, told)

        channel.run(self._stream_count(todo), send)
        channel.lead.expect(Kind.STORED)

    def pull(self, request: PullRequest, watch: Watch = lambda name, leading_bytes: None) -> Seal:
        """Fetch regions of a snapshot into a slot and check them against `request.digest`; returns the source's seal.

        The slot's header is cleared and not written: other regions may come from other sources. TransferError names
        the source, so that the caller can try the next one; no thread writes into the slot after this returns.
        """
        clear_seal(request.into)
        with self.channel(request.address, request.generation) as channel:
            channel.lead.send(Kind.PULL, _name(request.rank, request.version))
            seal = _found(channel.lead.expect(Kind.FOUND), request)
            geometry, extent = request.geometry, seal.extent
            targets = {name: region(request.into, geometry, extent, name) for name in request.regions}
            self._fetch(channel, seal, request.digest, targets, watch)
        return seal

    def _fetch(
        self,
        channel: Channel,
        seal: Seal,
        expect: Digest,
        targets: dict[Region, memoryview],
        watch: Watch,
    ) -> None:
        regions = tuple(targets)
        received, lock = ArrivedPieces(seal.extent, regions), threading.Lock()
        todo = deque(chunks_of(seal.extent, regions, at_least=_PULL_CHUNKS))
        for name in regions:
            watch(name, 0)

        def fetch(connection: Connection) -> None:
            for chunk, digests in self._read_ahead(connection, seal, todo, targets):
                with lock:
                    received.arrived(chunk, digests)
                    watch(chunk.region, received.leading_bytes(chunk.region))

        channel.run(self._stream_count(todo), fetch)
        mismatch = received.mismatch(expect)
        if mismatch is not None:
            raise CopyDamaged(f"{channel.peer}: {seal.version} of rank {seal.rank} is {mismatch}")

    def _read_ahead(
        self, connection: Connection, seal: Seal, todo: deque[Chunk], targets: dict[Region, memoryview]
    ) -> Iterator[tuple[Chunk, list[int]]]:
        """Yields chunks that have been read, with the digests of their pieces. It asks for the next chunk before this
        one is read, so that the source does not pause in between."""
        asked: deque[Chunk] = deque()

        def ask(chunk: Chunk, kind: Kind) -> None:
            connection.send(kind, [*_name(seal.rank, seal.version), *pack_chunk(chunk)])
            asked.append(chunk)

        while True:
            while len(asked) < _READS_AHEAD and (chunk := _next(todo)) is not None:
                ask(chunk, Kind.LOOK if self._transport.reads else Kind.READ)
            if not asked:
                return
            chunk = asked.popleft()
            target = targets[chunk.region][chunk.offset : chunk.offset + chunk.size]
            digests = self._read_answer(connection, chunk, target)
            if digests is None:
                ask(chunk, Kind.READ)
            else:
                yield chunk, digests

    def _read_answer(self, connection: Connection, chunk: Chunk, target: memoryview) -> list[int] | None:
        """Returns the digests of the pieces of the next chunk; None: it came as a window that cannot be read."""
        frame = connection.expect(Kind.DATA, Kind.WINDOW)
        if frame.head.kind is Kind.WINDOW:
            place, window = receive_window(connection, frame)
            _check_answer(place, chunk)
            return read_window(self._transport, connection, window, target)
        _check_answer(frame.body, chunk)
        if frame.head.payload_bytes != chunk.size:
            raise WireError("the peer sent another number of bytes than was asked for")
        return connection.receive_pieces(target)

    def use_deadline(self, deadline_s: float) -> None:
        """Sets the deadline of streams that are opened from now on."""
        self._pool.use_deadline(deadline_s)

    def fence(self, generation: Generation) -> None:
        """Refuses older generations from now on, cuts their transfers, and returns when they have ended."""
        self._pool.fence(generation)

    def close(self) -> None:
        """Cuts all transfers and waits for their end. It may be called twice."""
        self._pool.close()

    def _stream_count(self, todo: deque[Chunk]) -> int:
        total_bytes = sum(chunk.size for chunk in todo)
        return max(1, min(self._streams, total_bytes // _STREAM_WORTH_BYTES))

    @contextlib.contextmanager
    def channel(self, address: TransferAddress, generation: Generation) -> Iterator[Channel]:
        """Yields a channel for one transfer. It is kept for the next one if there was no error, else closed."""
        channel = self._pool.take(address, generation)
        healthy = False
        try:
            yield channel
            healthy = True
        except TransferError:
            raise
        except DeadPoolError as error:
            raise TransferError(f"{channel.peer}: {error}") from error
        finally:
            self._pool.give(channel, healthy=healthy)


def _next(todo: deque[Chunk]) -> Chunk | None:
    # Streams share one list and take the next chunk from it, so that a slow stream does less instead of ending later.
    try:
        return todo.popleft()
    except IndexError:
        return None


def _check_answer(place: list[Any], chunk: Chunk) -> None:
    if place != pack_chunk(chunk):
        raise WireError("the peer answered another read than was asked for")


def _name(rank: int, version: Version) -> list[int]:
    return [rank, version.generation.term, version.generation.n, version.number]


def _found(frame: Frame, request: PullRequest) -> Seal:
    """The seal of what the source has, if it is what was asked for; else WireError."""
    if len(frame.body) != 1:
        raise WireError("expected a seal")
    seal, rank, version = read_seal_field(frame.body[0]), request.rank, request.version
    if (seal.rank, seal.version) != (rank, version):
        raise WireError(f"the peer has {seal.version} of rank {seal.rank}, but {version} of rank {rank} was asked for")
    for name in request.regions:
        if name not in regions_sent(seal) and extent_of(seal.extent, name):
            raise WireError(f"the peer's copy has no region {name!r}")
    request.geometry.check(seal.extent, request.regions)
    return seal
