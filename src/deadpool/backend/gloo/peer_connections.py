"""Checks whether every connection of every gloo group is intact, which tells a lost peer from an error of the script.

The loss of a peer's process shows here before anything else can fail because of it, since the default group connects
every rank with every other one. Gloo closes its descriptor as soon as a connection ends, so a closed descriptor counts
as broken too.

A connection that came in through gloo's port does not say which group it is for, and a peer that is ahead may already
have connected for its next group. So a group claims all connections that no group has claimed yet; if these are more
than it needs, the next group shares a pool with it. A pool is complete while it has as many intact connections as its
groups need, destroyed groups not counted. Used by backend/supervisor.py, under its lock.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterable
from dataclasses import dataclass, field

from deadpool.backend.gloo.sockets import OpenSocket

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
