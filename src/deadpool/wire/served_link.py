"""One peer of a server that has thousands: what it says is handed over where it arrives, without a task to be woken.

It takes a connection over from the streams that the handshake was read from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from deadpool.errors import WireError
from deadpool.wire.asyncio_streams import FRAME_S
from deadpool.wire.codec import decode
from deadpool.wire.control_link import framed
from deadpool.wire.deadline import Patience
from deadpool.wire.framing import Framer

_GOODBYE_S = 1.0


class ServedLink(asyncio.Protocol):
    """`listen` ends when the peer is gone. `send` never blocks: a slow peer is the caller's concern."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._transport = reader, cast(asyncio.Transport, writer.transport)
        self._framer = Framer()
        self._hear: Callable[[Any], None] = _ignore
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._patience = Patience(FRAME_S)
        self._waits_since: float | None = None  # for the rest of a frame
        self._look: asyncio.TimerHandle | None = None
        self.lost_reason = "closed"

    async def listen(self, hear: Callable[[Any], None]) -> None:
        """A peer that talks nonsense, too much or too slowly is a lost one; `lost_reason` says which."""
        self._hear = hear
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
            self.lost_reason = str(error)  # it broke before anybody listened
        finally:
            self._stop_looking()

    # --- what the transport calls ------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self._framer.feed(data):
                if self._waits_since is not None:
                    self._patience, self._waits_since = Patience(FRAME_S), None
                self._hear(decode(payload))
        except WireError as error:
            self._break_off(str(error))
        if self._framer.in_progress and self._look is None:
            self._look_later()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            self.lost_reason = str(error)
        if not self._gone.done():
            self._gone.set_result(None)

    # --- a frame that has begun must end -----------------------------------------------------------------------------

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._waits_since = loop.time()
        self._look = loop.call_later(self._patience.look_s, self._look_at_frame)

    def _look_at_frame(self) -> None:
        self._look = None
        if not self._framer.in_progress or self._gone.done():
            return
        if self._waits_since is not None:  # else another frame has begun since
            self._patience.waited(asyncio.get_running_loop().time() - self._waits_since)
        if self._patience.over:
            self._break_off(f"a frame was not complete after {FRAME_S:g} s")
        else:
            self._look_later()

    def _stop_looking(self) -> None:
        if self._look is not None:
            self._look.cancel()

    # --- our side ----------------------------------------------------------------------------------------------------

    def send(self, message: Any) -> None:
        self.send_framed(framed(message))

    def send_framed(self, data: bytes) -> None:
        """A message that others are sent too, as `framed` gives it."""
        if not self._transport.is_closing():
            self._transport.write(data)

    async def close(self) -> None:
        """Says what is still to be said, bounded, then hangs up."""
        self._transport.close()
        try:
            async with asyncio.timeout(_GOODBYE_S):
                await asyncio.shield(self._gone)
        except TimeoutError:
            self.abort()

    def _break_off(self, reason: str) -> None:
        self.lost_reason = reason
        self._hear = _ignore
        self.abort()
        if not self._gone.done():
            self._gone.set_result(None)

    def abort(self) -> None:
        self._transport.abort()


def _ignore(message: Any) -> None:
    """From a peer that was given up."""
