"""Authenticated connections as streams of whole payloads: first both ends prove the secret, then payloads follow.

`shake_hands` and `payloads` are what both ends of an asyncio connection do, all of it within bounds. `BlockingLink` is
the client's end for a thread that can wait.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator

from deadpool.errors import VersionMismatch, WireError
from deadpool.protocol.identity import Address
from deadpool.wire.codec import Framer, frame
from deadpool.wire.credentials import Credentials, carrier_of_server
from deadpool.wire.deadline import PeerDeadline
from deadpool.wire.handshake import PLAIN, Handshake, Purpose

HANDSHAKE_S = 5.0
FRAME_S = 30.0
_CHUNK_BYTES = 1 << 18


async def shake_hands(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handshake: Handshake) -> None:
    """WireError: the peer is not one of this job, or left. The caller sets the deadline and hangs up."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        writer.write(handshake.opening())
        while not handshake.done:
            writer.write(handshake.feed(await reader.readexactly(handshake.needed)))
    except VersionMismatch as error:
        writer.write(error.last_words)
        raise
    except (asyncio.IncompleteReadError, OSError) as error:
        raise WireError("it hung up in the handshake") from error


async def payloads(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yields payloads until the peer is gone. It raises WireError for a frame that is too large, or takes too long, and
    OSError if the connection broke.
    """
    framer, patience = Framer(), PeerDeadline(FRAME_S)
    while True:
        data = await (_read_on(reader, patience) if framer.in_progress else reader.read(_CHUNK_BYTES))
        if not data:
            return
        for payload in framer.feed(data):
            patience = PeerDeadline(FRAME_S)
            yield payload


async def _read_on(reader: asyncio.StreamReader, patience: PeerDeadline) -> bytes:
    """More of a frame that has begun."""
    loop = asyncio.get_running_loop()
    while not patience.over:
        began = loop.time()
        try:
            async with asyncio.timeout(patience.wait_limit_s):
                return await reader.read(_CHUNK_BYTES)
        except TimeoutError:
            continue
        finally:
            patience.waited(loop.time() - began)
    raise WireError(f"a frame was not complete after {FRAME_S:g} s")


class BlockingLink:
    """The client's end. Not for several threads at once."""

    def __init__(self, address: Address, credentials: Credentials, purpose: Purpose, *, timeout_s: float) -> None:
        self._framer, self._payloads = Framer(), list[bytes]()
        deadline = time.monotonic() + timeout_s
        self._sock = socket.create_connection((address.host, address.port), timeout=timeout_s)
        try:
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            carrier = self._encrypt(credentials)
            self._shake_hands(Handshake(credentials.secret, "client", purpose, carrier), deadline)
        except (OSError, WireError):
            self._sock.close()
            raise

    def send(self, payload: bytes) -> None:
        self._sock.sendall(frame(payload))

    def receive(self, timeout_s: float | None) -> bytes:
        """The next payload; TimeoutError when none came in time, WireError when the peer is gone."""
        self._sock.settimeout(timeout_s)
        while not self._payloads:
            data = self._sock.recv(_CHUNK_BYTES)
            if not data:
                raise WireError("the peer hung up")
            self._payloads.extend(self._framer.feed(data))
        return self._payloads.pop(0)

    def close(self) -> None:
        self._sock.close()

    def _encrypt(self, credentials: Credentials) -> bytes:
        """What carries the connection from here on; for the proof."""
        if credentials.tls is None:
            return PLAIN
        encrypted = credentials.tls.client.wrap_socket(self._sock)
        self._sock = encrypted
        return carrier_of_server(encrypted)

    def _shake_hands(self, handshake: Handshake, deadline: float) -> None:
        """A client has no last words for a server of another version: it has proved its own already."""
        self._sock.sendall(handshake.opening())
        while not handshake.done:
            self._sock.sendall(handshake.feed(self._exactly(handshake.needed, deadline)))

    def _exactly(self, count: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < count:
            self._sock.settimeout(max(1e-3, deadline - time.monotonic()))
            chunk = self._sock.recv(count - len(data))
            if not chunk:
                raise WireError("the peer hung up in the handshake: is the job's secret the same there?")
            data += chunk
        return bytes(data)
