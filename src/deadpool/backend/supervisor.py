"""Runs the calls that open sockets for process groups, so that an abort can end them at any moment.

Owns the set of sockets that belong to the process groups of this process, and the abort flag. Making a gloo group may
wait for a peer that never comes, in the store or in accept(), where there is no socket yet that could be shut down. So
each call runs in a thread of its own, and the caller waits for the end of the call or for the abort. A call that was
given up finds its sockets shut down, fails, and frees its half-made group; if it waits in accept(), that happens only
at the group's own timeout.

Which sockets belong to a group:

- A connection that was accepted on gloo's port always does, whenever it came: a peer that is ahead connects for its
  next group before this process has begun to make that group.
- An outgoing connection does if it was opened while the call ran. If more are found than the group has peers, another
  thread opened some too, and those that belong to a Python object are left out, since gloo's never do.

A mistake is possible where native code of another library connects during those milliseconds, and for every connection
opened during a call that is given up: it is shut down with the group's, which looks to its owner like a peer that
closed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from deadpool.backend.gloo_connections import (
    OpenSocket,
    PeerConnections,
    accepted_on,
    connected,
    listening_ports,
    open_sockets,
    owned_by_python,
    shut_all,
)
from deadpool.errors import GroupError

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Call:
    """One supervised call. `settled` is set when it ends or is given up."""

    what: str
    before: frozenset[OpenSocket]
    connections: int | None
    keep: bool
    settled: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None
    given_up: bool = False


class Supervisor:
    """Runs calls that can be aborted, one at a time, and remembers the sockets that they opened. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: set[OpenSocket] = set()
        self._peers = PeerConnections()
        self._own_ports: frozenset[int] = frozenset()
        self._call: _Call | None = None
        self._aborted = False
        self._abort_count = 0

    @property
    def abort_count(self) -> int:
        """How often abort() was called: a caller can tell an abort that it knows of from a newer one."""
        return self._abort_count

    @property
    def is_aborted(self) -> bool:
        return self._aborted

    def claim_ports(self, open_ports: Callable[[], object]) -> None:
        """Runs `open_ports`; connections accepted on the ports that it opens belong to process groups from now on."""
        before = open_sockets()
        open_ports()
        self._own_ports |= listening_ports(open_sockets() - before)

    def abort(self) -> int:
        """Shuts down every connection and gives up the call that runs now; new calls fail until allow()."""
        with self._lock:
            self._aborted = True
            self._abort_count += 1
            incoming = accepted_on(open_sockets(), self._own_ports)
            return self._shut_everything() + shut_all(incoming)

    def allow(self, *, after_abort: int | None = None) -> None:
        """Permits calls again. GroupError: there was an abort that the caller does not know of.

        Connections that came in since the abort stay open: a peer that is ahead may have made them for its next group.
        """
        with self._lock:
            if after_abort is not None and after_abort != self._abort_count:
                raise GroupError(f"aborted again: {self._abort_count} aborts, the caller knows of {after_abort}")
            self._shut_everything()
            self._aborted = False

    def name_last_made(self, group: str) -> None:
        """The connections of the last call belong to this group."""
        with self._lock:
            self._peers.name(group)

    def forget(self, group: str) -> None:
        """The group was destroyed, so its connections may close."""
        with self._lock:
            self._peers.forget(group)

    def missing_connections(self) -> dict[tuple[str, ...], int]:
        """How many connections have closed, by the groups that they may have belonged to. {} while aborted."""
        with self._lock:
            return self._peers.missing()

    def excuse_missing(self, group: str, count: int) -> None:
        """`count` missing connections of the group are explained: peers have destroyed it."""
        with self._lock:
            self._peers.excuse(group, count)

    def run(
        self,
        what: str,
        work: Callable[[], T],
        *,
        connections: int | None = None,
        keep: bool = True,
        wait_s: float | None = None,
    ) -> T:
        """Returns the result of `work`. GroupError: it failed, it was aborted, or wait_s passed.

        `connections` is how many native connections the work makes when it succeeds; None: unknown. `keep` is False if
        an abort need not shut them down once the call has succeeded, because their owner does.
        """
        call = self._begin(what, connections, keep)
        threading.Thread(target=self._work, args=(call, work), name=f"deadpool {what}", daemon=True).start()
        in_time = call.settled.wait(wait_s)
        with self._lock:
            result: T = self._end(call, in_time, wait_s)
            return result

    def _begin(self, what: str, connections: int | None, keep: bool) -> _Call:
        with self._lock:
            if self._aborted:
                raise GroupError(f"{what}: groups are aborted and not rebuilt yet")
            if self._call is not None:
                raise GroupError(f"{what}: {self._call.what} is still under way in another thread")
            self._call = _Call(what, open_sockets(), connections, keep)
            return self._call

    def _work(self, call: _Call, work: Callable[[], Any]) -> None:
        try:
            result = work()
        except BaseException as error:  # the edge of this thread: handed to the caller
            call.error = error
        else:
            self._deliver(call, result)
        call.settled.set()

    def _deliver(self, call: _Call, result: Any) -> None:
        with self._lock:
            if not call.given_up:
                call.result = result

    def _end(self, call: _Call, in_time: bool, wait_s: float | None) -> Any:
        made = self._made_by(call)
        if not call.given_up:
            self._call = None
        if call.given_up:
            raise GroupError(f"{call.what}: aborted")
        if in_time and call.error is None:
            if call.keep:
                self._keep(_without_unrelated(connected(made), call.connections), call.connections)
            return call.result
        call.given_up = True
        shut_all(made)
        if call.error is not None:
            raise GroupError(f"{call.what}: {call.error}") from call.error
        raise GroupError(f"{call.what}: not every peer came within {wait_s:g} s")

    def _keep(self, made: frozenset[OpenSocket], connections: int | None) -> None:
        self._sockets |= made
        if connections:
            unclaimed = accepted_on(open_sockets() - self._peers.claimed, self._own_ports)
            self._peers.add(made | connected(unclaimed), connections)

    def _made_by(self, call: _Call) -> frozenset[OpenSocket]:
        """The outgoing connections that were opened since the call began. Accepted ones are known by their port."""
        now = open_sockets()
        made = now - call.before
        return made - accepted_on(made, listening_ports(now))

    def _shut_everything(self) -> int:
        ended = set(self._sockets)
        self._sockets.clear()
        self._peers.clear()
        if self._call is not None:
            ended |= self._made_by(self._call)
            self._call.given_up = True
            self._call.settled.set()
            self._call = None
        return shut_all(ended)


def _without_unrelated(found: frozenset[OpenSocket], expected: int | None) -> frozenset[OpenSocket]:
    if expected is None or len(found) <= expected:  # the usual case, which spares a search through all objects
        return found
    return found - owned_by_python(found)
