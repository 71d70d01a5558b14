"""Whether every connection of every gloo group is still there: tells a lost peer from an error of the script's own.

Any loss of a peer's process shows here before anything else can fail because of it: the default group connects every
rank with every other one. Gloo closes its descriptor as soon as a connection ends, so one that is gone is broken too.

Connections are known by group as far as they can be. What came in through gloo's port does not say for which group; a
peer that is ahead may have connected for its next one already. So a group claims what nobody else has claimed, and two
groups share a pool where that was more than one of them needs. What counts is whether a pool has as many whole ones
left as the groups need that are not destroyed. Used by backend/supervisor.py, under its lock.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterable
from dataclasses import dataclass, field

from deadpool.backend.sockets import OpenSocket

_BROKEN = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL


@dataclass(slots=True, eq=False)
class _Pool:
    sockets: set[OpenSocket]
    needs: dict[str, int] = field(default_factory=dict)  # by group
    unnamed: int = 0  # needed by a group that is being made


class PeerConnections:
    """Pools of connections, one for each group as a rule."""

    def __init__(self) -> None:
        self._pools: list[_Pool] = []
        self._poll = _poll_of(())
        self._fds: list[int] = []
        self._inodes: list[int] = []

    @property
    def claimed(self) -> frozenset[OpenSocket]:
        return frozenset(each for pool in self._pools for each in pool.sockets)

    def add(self, found: Iterable[OpenSocket], need: int) -> None:
        """A group was made that needs so many of these; the next name is its name. Those of an aborted generation may
        be among them, and have ended."""
        found = _whole(set(found) - self.claimed)
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
        """It was destroyed: its connections may end, now or whenever the last who holds it lets go of it."""
        for pool in self._pools:
            pool.needs.pop(group, None)

    def clear(self) -> None:
        self._pools.clear()
        self._watch()

    def missing(self) -> dict[tuple[str, ...], int]:
        """How many connections are broken, by the groups of which they may be; {} if none is."""
        if self._all_whole() or not (broken := self._broken()):
            return {}
        found: dict[tuple[str, ...], int] = {}
        for pool in self._pools:
            lacking = sum(pool.needs.values()) - len(pool.sockets - broken)
            if lacking > 0:
                found[tuple(pool.needs)] = lacking
        if not found:
            self._drop(broken)
        return found

    def accept(self, group: str, count: int) -> None:
        """So many are missing because peers have destroyed the group, and this process has not."""
        for pool in self._pools:
            if group in pool.needs:
                pool.needs[group] = max(0, pool.needs[group] - count)

    def _all_whole(self) -> bool:
        """Asked at the end of every step: one call for all, and a short one for each."""
        try:
            return not self._poll.poll(0) and [each.st_ino for each in map(os.fstat, self._fds)] == self._inodes
        except OSError:
            return False

    def _watch(self) -> None:
        claimed = self.claimed
        self._fds, self._inodes = [each.fd for each in claimed], [each.inode for each in claimed]
        self._poll = _poll_of(claimed)

    def _broken(self) -> set[OpenSocket]:
        said = {fd for fd, _ in self._poll.poll(0)}
        return {each for pool in self._pools for each in pool.sockets if each.fd in said or not _is_there(each)}

    def _drop(self, broken: set[OpenSocket]) -> None:
        """Of destroyed groups. A descriptor may be another one's by now, also another one's of ours."""
        for pool in self._pools:
            pool.sockets -= broken
        self._pools = [pool for pool in self._pools if pool.sockets or pool.unnamed]
        self._watch()


def _poll_of(sockets: Iterable[OpenSocket]) -> select.poll:
    poll = select.poll()
    for each in sockets:
        poll.register(each.fd, _BROKEN)
    return poll


def _whole(sockets: set[OpenSocket]) -> set[OpenSocket]:
    ended = {fd for fd, _ in _poll_of(sockets).poll(0)}
    return {each for each in sockets if each.fd not in ended}


def _is_there(remembered: OpenSocket) -> bool:
    try:
        return os.fstat(remembered.fd).st_ino == remembered.inode
    except OSError:
        return False
