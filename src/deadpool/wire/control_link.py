"""Authenticated TCP links of the control plane, for asyncio: agents and command lines connect to the coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any

from deadpool.errors import VersionMismatch, WireError
from deadpool.protocol.identity import Address
from deadpool.wire.asyncio_streams import HANDSHAKE_S, payloads, shake_hands
from deadpool.wire.codec import decode, encode, frame
from deadpool.wire.handshake import HELLO_BYTES, PLAIN, Handshake, Purpose, differ, is_old_hello, old_hello
from deadpool.wire.secret import Credentials
from deadpool.wire.tls import carrier_of_server

_TRIES = 5  # a server with too many unauthenticated connections may close that of a member, too
_BETWEEN_TRIES_S = 0.1
_OLD_S = 1.0


def framed(message: Any) -> bytes:
    return frame(encode(message))


class ControlLink:
    """The link to one peer. `messages()` ends when the peer is gone. `send` never blocks."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.lost_reason = "closed"

    def send(self, message: Any) -> None:
        self.send_framed(framed(message))

    def send_framed(self, data: bytes) -> None:
        """Send the bytes that `framed` gave for a message. One that goes to many peers is encoded once."""
        if not self._writer.is_closing():
            self._writer.write(data)

    async def messages(self) -> AsyncIterator[Any]:
        """A peer that sends nonsense, too much or too slowly counts as lost; `lost_reason` says why."""
        try:
            async for payload in payloads(self._reader):
                yield decode(payload)
        except (OSError, WireError) as error:
            self.lost_reason = str(error)

    async def close(self) -> None:
        """Send what is still buffered, within a bound, then close the connection."""
        try:
            async with asyncio.timeout(1.0):
                await self._writer.drain()
                self._writer.close()
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()

    def abort(self) -> None:
        self._writer.transport.abort()

    @property
    def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Hands out the streams for bytes that are no messages. The link is the caller's then."""
        return self._reader, self._writer


async def connect(
    address: Address, credentials: Credentials, *, patience_s: float, purpose: Purpose = "control"
) -> ControlLink:
    """Try until the coordinator answers (else TimeoutError), and again if it closes the link (else WireError).

    VersionMismatch: it is of this job and runs another version of DeadPool, which does not change by asking again."""
    async with asyncio.timeout(patience_s):
        for left in reversed(range(_TRIES)):
            try:
                return await _connect_once(address, credentials, purpose)
            except VersionMismatch as error:
                raise VersionMismatch(f"the process at {address} is refused: {error.found}") from error
            except WireError as error:
                if left == 0:
                    await _refuse_old(address, credentials)
                    raise WireError(f"{address} is not of this job, or does not accept us: {error}") from error
                await asyncio.sleep(_BETWEEN_TRIES_S)
    raise AssertionError("unreachable")


async def _connect_once(address: Address, credentials: Credentials, purpose: Purpose) -> ControlLink:
    reader, writer = await _reach(address, credentials)
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            await shake_hands(reader, writer, Handshake(credentials.secret, "client", purpose, _carrier(writer)))
    except BaseException as error:
        writer.transport.abort()
        if isinstance(error, TimeoutError):
            raise WireError(f"no handshake within {HANDSHAKE_S:g} s") from None
        raise
    return ControlLink(reader, writer)


async def _refuse_old(address: Address, credentials: Credentials) -> None:
    """Raises VersionMismatch if the process there is a DeadPool that does not tell its version. Such a one hangs up on
    our hello as it would on that of an unauthenticated peer, so it is asked with its own."""
    heard = b""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError, WireError):
        async with asyncio.timeout(_OLD_S):
            reader, writer = await _reach(address, credentials)
            try:
                writer.write(old_hello("control"))
                heard = await reader.readexactly(HELLO_BYTES)
            finally:
                writer.transport.abort()
    if is_old_hello(heard, "control"):
        found = differ("an older DeadPool, which does not tell its version")
        raise VersionMismatch(f"the process at {address} is refused: {found}")


async def _reach(address: Address, credentials: Credentials) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = credentials.tls.client if credentials.tls is not None else None
    limit_s = HANDSHAKE_S if context is not None else None
    while True:
        try:
            return await asyncio.open_connection(address.host, address.port, ssl=context, ssl_handshake_timeout=limit_s)
        except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError) as error:
            raise WireError(f"a process answers there, but: {error}") from error
        except OSError:
            await asyncio.sleep(0.1)  # no process listens there yet


def _carrier(writer: asyncio.StreamWriter) -> bytes:
    connection = writer.get_extra_info("ssl_object")
    return carrier_of_server(connection) if connection is not None else PLAIN
