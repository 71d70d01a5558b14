"""What both ends of an asyncio connection do: prove the secret, then read whole payloads, all of it within bounds."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

from deadpool.errors import VersionMismatch, WireError
from deadpool.wire.codec import Framer
from deadpool.wire.deadline import PeerDeadline
from deadpool.wire.handshake import Handshake

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
