"""Two plain sockets, with sendall and recv_into in one thread each: the limit that transfers are compared with."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

STREAMS = 2
CALL_BYTES = 4 << 20  # the fastest size on loopback, among 256 KiB and larger ones


def halves(view: memoryview) -> list[memoryview]:
    middle = len(view) // STREAMS
    return [view[:middle], view[middle:]]


def send_all(socks: Sequence[socket.socket], view: memoryview) -> None:
    """Sends everything, and waits for a byte from each peer, which tells that everything has arrived."""
    _in_threads(_send, list(zip(socks, halves(view), strict=True)))


def receive_all(socks: Sequence[socket.socket], view: memoryview) -> None:
    _in_threads(_receive, list(zip(socks, halves(view), strict=True)))


def _send(sock: socket.socket, view: memoryview) -> None:
    for start in range(0, len(view), CALL_BYTES):
        sock.sendall(view[start : start + CALL_BYTES])
    sock.recv(1)


def _receive(sock: socket.socket, view: memoryview) -> None:
    done = 0
    while done < len(view):
        count = sock.recv_into(view[done : done + CALL_BYTES])
        if count == 0:
            raise EOFError
        done += count
    sock.sendall(b"!")


def _in_threads(work: Callable[..., None], arguments: list[tuple[Any, ...]]) -> None:
    threads = [threading.Thread(target=work, args=each) for each in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
