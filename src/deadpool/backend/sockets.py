"""Which sockets this process has open, and how to end one from another thread.

Gloo cannot be aborted, but its sockets can be shut down under it: whoever waits on one then raises. A socket is
remembered by descriptor AND inode, because a descriptor number is reused as soon as gloo closes it. Used by
backend/supervisor.py only.
"""

from __future__ import annotations

import gc
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_DESCRIPTORS = Path("/dev/fd")


@dataclass(frozen=True, slots=True)
class OpenSocket:
    """One open socket of this process."""

    fd: int
    inode: int


@dataclass(frozen=True, slots=True)
class _Tcp:
    port: int
    listens: bool


def open_sockets() -> frozenset[OpenSocket]:
    """Every socket that is open now, of any kind."""
    found = (_socket_at(int(entry.name)) for entry in _DESCRIPTORS.iterdir())
    return frozenset(each for each in found if each is not None)


def listening_ports(sockets: Iterable[OpenSocket]) -> frozenset[int]:
    """The TCP ports on which these sockets listen."""
    return frozenset(each.port for each in map(_describe, sockets) if each is not None and each.listens)


def accepted_on(sockets: Iterable[OpenSocket], ports: frozenset[int]) -> frozenset[OpenSocket]:
    """Those among the sockets that came in through one of these ports."""
    return frozenset(each for each in sockets if (seen := _describe(each)) is not None and seen.port in ports)


def connected(sockets: Iterable[OpenSocket]) -> frozenset[OpenSocket]:
    """The TCP connections among the sockets, coming or going."""
    return frozenset(each for each in sockets if (seen := _describe(each)) is not None and not seen.listens)


def owned_by_python(sockets: Iterable[OpenSocket]) -> frozenset[OpenSocket]:
    """Those that a socket object of this interpreter would close."""
    owned = {each.fileno() for each in gc.get_objects() if issubclass(type(each), socket.socket)}
    return frozenset(each for each in sockets if each.fd in owned)


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
    with _borrowed(remembered) as end:
        # Gloo ends the process when its listening socket is shut.
        return end is not None and not _listens(end) and _shutdown(end)


def _describe(remembered: OpenSocket) -> _Tcp | None:
    with _borrowed(remembered) as end:
        return None if end is None else _Tcp(end.getsockname()[1], _listens(end))


@contextmanager
def _borrowed(remembered: OpenSocket) -> Iterator[socket.socket | None]:
    """The socket if it is still there and speaks TCP; its owner keeps it."""
    try:
        duplicate = os.dup(remembered.fd)
    except OSError:
        yield None
        return
    # The duplicate pins what it points to, so that a close cannot come between the comparison and the use.
    if _socket_at(duplicate) != OpenSocket(duplicate, remembered.inode):
        os.close(duplicate)
        yield None
        return
    with socket.socket(fileno=duplicate) as end:
        speaks_tcp = end.family in (socket.AF_INET, socket.AF_INET6) and end.type == socket.SOCK_STREAM
        yield end if speaks_tcp else None


def _listens(end: socket.socket) -> bool:
    return bool(end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _shutdown(end: socket.socket) -> bool:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:  # the peer was faster
        return False
    return True
