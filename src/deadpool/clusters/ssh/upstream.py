"""What a daemon has to say to the launcher, also while no launcher is connected. It never waits for one."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from deadpool.clusters.ssh.lines import MARK, encode

_BACKLOG = 2000
_BUFFER_BYTES = 4 << 20
_CLOSE_S = 2.0


class Upstream:
    def __init__(self) -> None:
        self._writer: asyncio.StreamWriter | None = None
        self._messages: list[bytes] = []  # without a launcher: they are few, and each counts
        self._lines: deque[bytes] = deque(maxlen=_BACKLOG)  # all of them are in console.log
        self._lost = 0

    @property
    def is_connected(self) -> bool:
        return self._writer is not None

    def use(self, writer: asyncio.StreamWriter) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._writer = writer
        for data in (*self._lines, *self._messages):
            self._write(data)
        self._lines.clear()
        self._messages.clear()

    def drop(self, writer: asyncio.StreamWriter) -> None:
        if self._writer is writer:
            self._writer = None
        writer.transport.abort()

    def send(self, data: bytes) -> None:
        if self._writer is None:
            self._messages.append(data)
        else:
            self._write(data)

    def send_line(self, what: str, text: str) -> None:
        """A line is dropped where the launcher does not keep up, and counted."""
        data = encode("line", what=what, text=text)
        if self._writer is None:
            self._lost += len(self._lines) == _BACKLOG
            self._lines.append(data)
        elif self._writer.transport.get_write_buffer_size() > _BUFFER_BYTES:
            self._lost += 1
        else:
            if self._lost:
                self._write(encode("lines_lost", count=self._lost))
                self._lost = 0
            self._write(data)

    async def close(self, last: bytes) -> None:
        self.send(last)
        if self._writer is not None:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._writer.drain()
                    self._writer.close()
                    await self._writer.wait_closed()

    def _write(self, data: bytes) -> None:
        assert self._writer is not None
        if not self._writer.is_closing():
            self._writer.write(MARK + data)
