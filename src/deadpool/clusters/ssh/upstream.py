"""What a daemon has to say, line by line.

`Upstream`: what a daemon has to say to the launcher, also while no launcher is connected. It never waits for one.

What the launcher, the sessions and the daemons say to each other: one JSON object per line, with its name in "op".

From the launcher to a session: ask, clock, attach, start; to a daemon: agent, beat, end. From a session: facts,
clock, attached, absent; from a daemon: line, lines_lost, exit, coordinator_restarted, announced, events, progress,
ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from typing import Any

MARK = b"deadpool-ssh/1 "
"""The mark before each line from a host: a login shell may print anything around it."""
LINE_LIMIT_BYTES = 8 << 20


def encode(op: str, **fields: Any) -> bytes:
    return json.dumps({"op": op, **fields}).encode() + b"\n"


def encode_marked(op: str, **fields: Any) -> bytes:
    return MARK + encode(op, **fields)


def decode(line: bytes) -> dict[str, Any] | None:
    """None: not one of our lines."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and "op" in message else None


def decode_marked(line: bytes) -> dict[str, Any] | None:
    """Text without an end of line may stand before the mark, as a shell's greeting does."""
    _, found, rest = line.partition(MARK)
    return decode(rest) if found else None


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
