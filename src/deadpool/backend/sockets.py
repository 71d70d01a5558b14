"""Which sockets this process has open, and how to end one from another thread.

Gloo cannot be aborted, but its sockets can be shut down under it: whoever waits on one then raises. A socket is
remembered by descriptor AND inode, because a descriptor number is reused as soon as gloo closes it. Used by
backend/supervisor.py only.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_DESCRIPTORS = Path("/dev/fd")


@dataclass(frozen=True, slots=True)
class OpenSocket:
    """One open socket of this process."""

    fd: int
    inode: int


def open_sockets() -> frozenset[OpenSocket]:
    """Every socket that is open now, of any kind."""
    found = (_socket_at(int(entry)) for entry in os.listdir(_DESCRIPTORS))
    return frozenset(each for each in found if each is not None)


def shut_all(sockets: Iterable[OpenSocket]) -> int:
    """Shuts those that are connected TCP sockets and still open; returns how many."""
    return sum(_shut(each) for each in sockets)


def _socket_at(fd: int) -> OpenSocket | None:
    try:
        status = os.fstat(fd)
    except OSError:  # closed since the directory was listed
        return None
    return OpenSocket(fd, status.st_ino) if stat.S_ISSOCK(status.st_mode) else None


def _shut(remembered: OpenSocket) -> bool:
    try:
        duplicate = os.dup(remembered.fd)
    except OSError:
        return False
    # The duplicate pins what it points to, so that a close cannot come between the comparison and the shutdown.
    if _socket_at(duplicate) != OpenSocket(duplicate, remembered.inode):
        os.close(duplicate)
        return False
    with socket.socket(fileno=duplicate) as end:
        return _is_tcp_connection(end) and _shutdown(end)


def _is_tcp_connection(end: socket.socket) -> bool:
    if end.family not in (socket.AF_INET, socket.AF_INET6) or end.type != socket.SOCK_STREAM:
        return False
    # Gloo ends the process when its listening socket is shut.
    return not end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def _shutdown(end: socket.socket) -> bool:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:  # the peer was faster
        return False
    return True
