"""The unix socket between an agent and its trainers. File descriptors of the arena travel beside messages.

The socket is abstract: it has no file that could be left behind, and only processes of this machine can reach it. The
agent's end never blocks its event loop; the trainer's end is blocking and may send from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from deadpool.errors import WireError
from deadpool.protocol.identity import Message
from deadpool.wire.codec import Framer, decode, encode, frame

_CREDENTIALS = struct.Struct("iII")
_CHUNK_BYTES = 1 << 18
_MAX_DESCRIPTORS = 8


class AgentEnd:
    """One trainer, seen from its agent. Callbacks run on the event loop."""

    def __init__(
        self, sock: socket.socket, on_message: Callable[[AgentEnd, Message], None], on_lost: Callable[[AgentEnd], None]
    ) -> None:
        self._sock, self._on_message, self._on_lost = sock, on_message, on_lost
        self._loop = asyncio.get_running_loop()
        self._framer = Framer()
        self._outbox: deque[tuple[bytes, int | None]] = deque()
        self._open = True
        sock.setblocking(False)
        self._loop.add_reader(sock, self._readable)

    def send(self, message: Message, descriptor: int | None = None) -> None:
        if self._open:
            self._outbox.append((frame(encode(message)), descriptor))
            self._flush()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._sock.close()

    def read_remaining(self) -> None:
        """Deliver the last messages of a trainer that has ended, before its end is acted on."""
        while self._open and self._readable():
            pass

    def _readable(self) -> bool:
        """False: there was nothing to read."""
        try:
            data = self._sock.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        try:
            for payload in self._framer.feed(data):
                self._on_message(self, decode(payload))
        except WireError:
            data = b""  # nonsense is as good as an end
        if not data:
            self.close()
            self._on_lost(self)
        return bool(data)

    def _flush(self) -> None:
        while self._outbox:
            data, descriptor = self._outbox[0]
            try:
                sent = socket.send_fds(self._sock, [data], [descriptor] if descriptor is not None else [])
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._flush)
                return
            except OSError:
                self._outbox.clear()  # the reader will see the end of it
                return
            if sent == len(data):
                self._outbox.popleft()
            else:
                self._outbox[0] = (data[sent:], None)  # the descriptor went with the first byte
        with contextlib.suppress(OSError):
            self._loop.remove_writer(self._sock)


class TrainerEnd:
    """The agent, seen from one of its trainers."""

    def __init__(self, name: str) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.connect("\0" + name)
        self._lock = threading.Lock()

    @property
    def agent_pid(self) -> int:
        return _peer(self._sock)[0]

    def send(self, message: Message) -> None:
        with self._lock, contextlib.suppress(OSError):  # the reading thread sees the end and acts on it
            self._sock.sendall(frame(encode(message)))

    def messages(self) -> Iterator[tuple[Any, Callable[[], int]]]:
        """Each message with a way to take the descriptor that came with it. Ends when the agent is gone."""
        framer, descriptors = Framer(), deque[int]()
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._sock, _CHUNK_BYTES, _MAX_DESCRIPTORS)
            except OSError:
                return
            descriptors.extend(fds)
            if not data:
                return
            for payload in framer.feed(data):
                yield decode(payload), descriptors.popleft

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def _peer(sock: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end, as the kernel says. An abstract socket has no file permissions to keep
    others out."""
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid), int(uid)


class TrainerListener:
    """The socket that the trainers of one node connect to."""

    def __init__(
        self, name: str, on_message: Callable[[AgentEnd, Message], None], on_lost: Callable[[AgentEnd], None]
    ) -> None:
        self.name = name
        self._on_message, self._on_lost = on_message, on_lost
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._ends: list[AgentEnd] = []

    def start(self) -> None:
        self._listener.bind("\0" + self.name)
        self._listener.listen(128)
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            sock, _ = self._listener.accept()
            _, uid = _peer(sock)
            if uid == os.getuid():
                self._ends.append(AgentEnd(sock, self._on_message, self._on_lost))
            else:
                sock.close()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for end in self._ends:
            end.close()
