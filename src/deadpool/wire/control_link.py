"""Authenticated TCP links of the control plane, for asyncio: agents and command lines connect to the coordinator.

`ControlLink` is the client's end. `ServedLink` is the end of a server that has thousands of peers: messages are handed
over where they arrive, and no task has to be woken for one. It takes its connection over from the streams that did the
handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import cast

from deadpool.errors import VersionMismatch, WireError
from deadpool.protocol.identity import Address, Message
from deadpool.wire.codec import Framer, decode, encode, frame
from deadpool.wire.credentials import Credentials, carrier_of_server
from deadpool.wire.deadline import PeerDeadline
from deadpool.wire.handshake import HELLO_BYTES, PLAIN, Handshake, Purpose, differ, is_old_hello, old_hello
from deadpool.wire.streams import FRAME_S, HANDSHAKE_S, payloads, shake_hands

_TRIES = 5  # a server with too many unauthenticated connections may close that of a member, too
_BETWEEN_TRIES_S = 0.1
_OLD_S = 1.0

_GOODBYE_S = 1.0


def framed(message: Message) -> bytes:
    return frame(encode(message))


class ControlLink:
    """The link to one peer. `messages()` ends when the peer is gone. `send` never blocks."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.lost_reason = "closed"

    def send(self, message: Message) -> None:
        self.send_framed(framed(message))

    def send_framed(self, data: bytes) -> None:
        """Send the bytes that `framed` gave for a message. One that goes to many peers is encoded once."""
        if not self._writer.is_closing():
            self._writer.write(data)

    async def messages(self) -> AsyncIterator[Message]:
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


class ServedLink(asyncio.Protocol):
    """`listen` ends when the peer is gone. `send` never blocks: the caller has to bound what a slow peer is sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._transport = reader, cast(asyncio.Transport, writer.transport)
        self._framer = Framer()
        self._deliver: Callable[[Message], None] = _ignore
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._deadline = PeerDeadline(FRAME_S)
        self._waits_since: float | None = None  # for the rest of a frame
        self._check_timer: asyncio.TimerHandle | None = None
        self.lost_reason = "closed"

    async def listen(self, deliver: Callable[[Message], None]) -> None:
        """Hand every message to `deliver`. A peer that sends nonsense, too much or too slowly counts as lost, and
        `lost_reason` says why."""
        self._deliver = deliver
        try:
            self._reader.feed_eof()  # for the streams this is the end: what they have read already is ours
            early = await self._reader.read()
            is_there = not self._transport.is_closing()
            if is_there:
                self._transport.set_protocol(self)
            self.data_received(early)
            if is_there:
                self._transport.resume_reading()  # it stops by itself when much has come early
                await self._gone
        except OSError as error:
            self.lost_reason = str(error)  # it broke before this end listened
        finally:
            self._stop_checking()

    # --- what the transport calls ------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self._framer.feed(data):
                if self._waits_since is not None:
                    self._deadline, self._waits_since = PeerDeadline(FRAME_S), None
                self._deliver(decode(payload))
        except WireError as error:
            self._break_off(str(error))
        if self._framer.in_progress and self._check_timer is None:
            self._check_later()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            self.lost_reason = str(error)
        if not self._gone.done():
            self._gone.set_result(None)

    # --- a frame that has begun must end -----------------------------------------------------------------------------

    def _check_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._waits_since = loop.time()
        self._check_timer = loop.call_later(self._deadline.wait_limit_s, self._check_frame)

    def _check_frame(self) -> None:
        self._check_timer = None
        if not self._framer.in_progress or self._gone.done():
            return
        if self._waits_since is not None:  # else another frame has begun since
            self._deadline.waited(asyncio.get_running_loop().time() - self._waits_since)
        if self._deadline.over:
            self._break_off(f"a frame was not complete after {FRAME_S:g} s")
        else:
            self._check_later()

    def _stop_checking(self) -> None:
        if self._check_timer is not None:
            self._check_timer.cancel()

    # --- our side ----------------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        self.send_framed(framed(message))

    def send_framed(self, data: bytes) -> None:
        """Send the bytes that `framed` gave for a message. One that goes to many peers is encoded once."""
        if not self._transport.is_closing():
            self._transport.write(data)

    async def close(self) -> None:
        """Send what is still buffered, within a bound, then close the connection."""
        self._transport.close()
        try:
            async with asyncio.timeout(_GOODBYE_S):
                await asyncio.shield(self._gone)
        except TimeoutError:
            self.abort()

    def _break_off(self, reason: str) -> None:
        self.lost_reason = reason
        self._deliver = _ignore
        self.abort()
        if not self._gone.done():
            self._gone.set_result(None)

    def abort(self) -> None:
        self._transport.abort()


def _ignore(message: Message) -> None:
    """Messages of a peer that was given up lead to nothing."""
