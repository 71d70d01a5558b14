"""Lists the open sockets of this process, and shuts one down from another thread.

Gloo has no abort, but its sockets can be shut down under it: a thread that waits on one then raises. A socket is
remembered by descriptor and inode, because a descriptor number is reused as soon as gloo closes it. Used by
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
    """All sockets of any kind that are open now."""
    found = (_socket_at(int(entry.name)) for entry in _DESCRIPTORS.iterdir())
    return frozenset(each for each in found if each is not None)


def listening_ports(sockets: Iterable[OpenSocket]) -> frozenset[int]:
    """The TCP ports on which these sockets listen."""
    return frozenset(each.port for each in map(_describe, sockets) if each is not None and each.listens)


def accepted_on(sockets: Iterable[OpenSocket], ports: frozenset[int]) -> frozenset[OpenSocket]:
    """The sockets that were accepted on one of these ports, and the listeners themselves."""
    return frozenset(each for each in sockets if (seen := _describe(each)) is not None and seen.port in ports)


def connected(sockets: Iterable[OpenSocket]) -> frozenset[OpenSocket]:
    """The TCP connections among the sockets, incoming and outgoing."""
    return frozenset(each for each in sockets if (seen := _describe(each)) is not None and not seen.listens)


def owned_by_python(sockets: Iterable[OpenSocket]) -> frozenset[OpenSocket]:
    """The sockets that belong to a socket object of this interpreter."""
    owned = {each.fileno() for each in gc.get_objects() if issubclass(type(each), socket.socket)}
    return frozenset(each for each in sockets if each.fd in owned)


def shut_all(sockets: Iterable[OpenSocket]) -> int:
    """Shuts down the TCP connections among them that are still open; returns how many."""
    return sum(_shut(each) for each in sockets)


def _socket_at(fd: int) -> OpenSocket | None:
    try:
        status = os.fstat(fd)
    except OSError:  # closed since the directory was listed
        return None
    return OpenSocket(fd, status.st_ino) if stat.S_ISSOCK(status.st_mode) else None


def _shut(remembered: OpenSocket) -> bool:
    with _borrowed(remembered) as end:
        # Gloo ends the process when its listening socket is shut down.
        return end is not None and not _listens(end) and _shutdown(end)


def _describe(remembered: OpenSocket) -> _Tcp | None:
    with _borrowed(remembered) as end:
        return None if end is None else _Tcp(end.getsockname()[1], _listens(end))


@contextmanager
def _borrowed(remembered: OpenSocket) -> Iterator[socket.socket | None]:
    """Yields a duplicate of the socket, or None if it is closed by now or is not TCP. The owner's socket stays open."""
    try:
        duplicate = os.dup(remembered.fd)
    except OSError:
        yield None
        return
    # The duplicate keeps the socket alive, so that its owner cannot close it between the comparison and the use.
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
