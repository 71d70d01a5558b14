"""Authenticated TCP links of the control plane, for asyncio: agents and commands to the coordinator."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

from deadpool.errors import WireError
from deadpool.protocol.topology import Address
from deadpool.wire.codec import decode, encode
from deadpool.wire.framing import Framer, frame
from deadpool.wire.handshake import NONCE_BYTES, PROOF_BYTES, Role, check, make_nonce, proof

HANDSHAKE_S = 5.0


def framed(message: Any) -> bytes:
    return frame(encode(message))


class ControlLink:
    """One peer. `messages()` ends when the peer is gone; `send` never blocks, a slow peer is the reader's concern."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.lost_reason = "closed"

    def send(self, message: Any) -> None:
        self.send_framed(framed(message))

    def send_framed(self, data: bytes) -> None:
        """A message that others are sent too, as `framed` gives it."""
        if not self._writer.is_closing():
            self._writer.write(data)

    async def messages(self) -> AsyncIterator[Any]:
        framer = Framer()
        while True:
            try:
                data = await self._reader.read(1 << 18)
            except OSError as error:
                self.lost_reason = str(error)
                return
            if not data:
                return
            for payload in framer.feed(data):
                yield decode(payload)

    async def close(self) -> None:
        """Says what is still to be said, bounded, then hangs up."""
        try:
            async with asyncio.timeout(1.0):
                await self._writer.drain()
                self._writer.close()
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()

    def abort(self) -> None:
        self._writer.transport.abort()


async def connect(address: Address, secret: bytes, *, patience_s: float) -> ControlLink:
    """Tries until the coordinator answers or patience ends."""
    async with asyncio.timeout(patience_s):
        while True:
            try:
                reader, writer = await asyncio.open_connection(address.host, address.port)
                break
            except OSError:
                await asyncio.sleep(0.1)
    return await authenticated(reader, writer, secret, "client")


async def authenticated(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, role: Role
) -> ControlLink:
    await authenticate(reader, writer, secret, role)
    return ControlLink(reader, writer)


async def authenticate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, role: Role) -> None:
    """Both sides show that they know the job's secret; the client first, so that a stranger learns nothing."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            await _exchange(reader, writer, secret, role)
    except (TimeoutError, asyncio.IncompleteReadError, OSError, WireError) as error:
        writer.transport.abort()
        raise WireError(f"peer {writer.get_extra_info('peername')} is not one of this job: {error}") from error


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, role: Role) -> None:
    nonce = make_nonce()
    writer.write(nonce)
    peer_nonce = await reader.readexactly(NONCE_BYTES)
    if role == "client":
        writer.write(proof(secret, role, nonce, peer_nonce))
    peer_proof = await reader.readexactly(PROOF_BYTES)
    if not check(secret, role, nonce, peer_nonce, peer_proof):
        raise WireError("it does not know the job's secret")
    if role == "server":
        writer.write(proof(secret, role, nonce, peer_nonce))
