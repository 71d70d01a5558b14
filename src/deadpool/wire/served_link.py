"""The link to one peer of a server that has thousands: messages are handed over where they arrive.

No task has to be woken for a message. The link takes its connection over from the streams that did the handshake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from deadpool.errors import WireError
from deadpool.wire.asyncio_streams import FRAME_S
from deadpool.wire.codec import Framer, decode
from deadpool.wire.control_link import framed
from deadpool.wire.deadline import PeerDeadline

_GOODBYE_S = 1.0


class ServedLink(asyncio.Protocol):
    """`listen` ends when the peer is gone. `send` never blocks: the caller has to bound what a slow peer is sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._transport = reader, cast(asyncio.Transport, writer.transport)
        self._framer = Framer()
        self._deliver: Callable[[Any], None] = _ignore
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._deadline = PeerDeadline(FRAME_S)
        self._waits_since: float | None = None  # for the rest of a frame
        self._check_timer: asyncio.TimerHandle | None = None
        self.lost_reason = "closed"

    async def listen(self, deliver: Callable[[Any], None]) -> None:
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

    def send(self, message: Any) -> None:
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


def _ignore(message: Any) -> None:
    """Messages of a peer that was given up lead to nothing."""
