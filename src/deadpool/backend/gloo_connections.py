"""The sockets of gloo, and whether each still leads to its peer.

`OpenSocket` lists the open sockets of this process, and shuts one down from another thread.

Gloo has no abort, but its sockets can be shut down under it: a thread that waits on one then raises. A socket is
remembered by descriptor and inode, because a descriptor number is reused as soon as gloo closes it. Used by
backend/supervisor.py only.

`PeerConnections` checks whether every connection of every gloo group is intact, which tells a lost peer from an error
of the script.

The loss of a peer's process shows here before anything else can fail because of it, since the default group connects
every rank with every other one. Gloo closes its descriptor as soon as a connection ends, so a closed descriptor counts
as broken too.

A connection that came in through gloo's port does not say which group it is for, and a peer that is ahead may already
have connected for its next group. So a group claims all connections that no group has claimed yet; if these are more
than it needs, the next group shares a pool with it. A pool is complete while it has as many intact connections as its
groups need, destroyed groups not counted. Used by backend/supervisor.py, under its lock.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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


_BROKEN = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL


@dataclass(slots=True, eq=False)
class _Pool:
    sockets: set[OpenSocket]
    needs: dict[str, int] = field(default_factory=dict)  # by group
    unnamed: int = 0  # how many a group needs that has no name yet


class PeerConnections:
    """Holds the pools of connections: one for each group, except where two groups have to share one."""

    def __init__(self) -> None:
        self._pools: list[_Pool] = []
        self._poll = _poll_of(())
        self._fds: list[int] = []
        self._inodes: list[int] = []

    @property
    def claimed(self) -> frozenset[OpenSocket]:
        return frozenset(each for pool in self._pools for each in pool.sockets)

    def add(self, found: Iterable[OpenSocket], need: int) -> None:
        """Registers the connections of a new group that needs `need` of them; name() names the group afterwards.

        Connections of an aborted generation may be among those found; they are broken and left out.
        """
        found = _intact(set(found) - self.claimed)
        last = self._pools[-1] if self._pools else None
        if last is None or len(last.sockets) <= sum(last.needs.values()):
            last = _Pool(set())
            self._pools.append(last)
        last.sockets |= found
        last.unnamed = need
        self._watch()

    def name(self, group: str) -> None:
        self.forget(group)
        last = self._pools[-1] if self._pools else None
        if last is not None and last.unnamed:
            last.needs[group], last.unnamed = last.unnamed, 0

    def forget(self, group: str) -> None:
        """The group was destroyed: its connections may close at any time, when the last reference to it is dropped."""
        for pool in self._pools:
            pool.needs.pop(group, None)

    def clear(self) -> None:
        self._pools.clear()
        self._watch()

    def missing(self) -> dict[tuple[str, ...], int]:
        """How many connections are missing in each pool, by the names of the groups that share it."""
        if self._are_all_intact() or not (broken := self._broken()):
            return {}
        found: dict[tuple[str, ...], int] = {}
        for pool in self._pools:
            lacking = sum(pool.needs.values()) - len(pool.sockets - broken)
            if lacking > 0:
                found[tuple(pool.needs)] = lacking
        if not found:
            self._drop(broken)
        return found

    def excuse(self, group: str, count: int) -> None:
        """`count` connections are missing because peers have destroyed the group and this process has not yet."""
        for pool in self._pools:
            if group in pool.needs:
                pool.needs[group] = max(0, pool.needs[group] - count)

    def _are_all_intact(self) -> bool:
        """Runs at the end of every step, so it is cheap: one poll for all connections and one fstat for each."""
        try:
            return not self._poll.poll(0) and [each.st_ino for each in map(os.fstat, self._fds)] == self._inodes
        except OSError:
            return False

    def _watch(self) -> None:
        claimed = self.claimed
        self._fds, self._inodes = [each.fd for each in claimed], [each.inode for each in claimed]
        self._poll = _poll_of(claimed)

    def _broken(self) -> set[OpenSocket]:
        polled = {fd for fd, _ in self._poll.poll(0)}
        return {each for pool in self._pools for each in pool.sockets if each.fd in polled or not _is_open(each)}

    def _drop(self, broken: set[OpenSocket]) -> None:
        """Forgets broken connections of destroyed groups: their descriptors may be reused, also by another group."""
        for pool in self._pools:
            pool.sockets -= broken
        self._pools = [pool for pool in self._pools if pool.sockets or pool.unnamed]
        self._watch()


def _poll_of(sockets: Iterable[OpenSocket]) -> select.poll:
    poll = select.poll()
    for each in sockets:
        poll.register(each.fd, _BROKEN)
    return poll


def _intact(sockets: set[OpenSocket]) -> set[OpenSocket]:
    ended = {fd for fd, _ in _poll_of(sockets).poll(0)}
    return {each for each in sockets if each.fd not in ended}


def _is_open(remembered: OpenSocket) -> bool:
    try:
        return os.fstat(remembered.fd).st_ino == remembered.inode
    except OSError:
        return False
