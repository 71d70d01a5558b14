"""Runs the calls that open sockets, so that they can be given up at any moment.

Owns which sockets belong to the process groups of this process, and the abort flag. Making a gloo group may wait for a
peer that never comes, in the store or in accept(), where no socket exists that could be shut. So the call runs in a
thread of its own and the caller waits for the call OR the abort, whichever comes first. A call that was given up finds
its sockets shut, fails and takes its half-made group with it; where it waits for a connection, that happens at the
group's own timeout.

Whatever came in through gloo's port is ours, whenever it came: a peer that is ahead connects for its next group before
we have begun to make ours. A connection to somebody else counts as the call's when it was opened while the call ran.
Where more are found than the group has peers, an unrelated thread was busy too, and those that belong to a Python
object are its own: gloo's never do. What is left is a connection that somebody else's native code makes in those
milliseconds, or any at all in a call that is given up: it is taken for one of ours and shut with them, which looks like
a peer that hung up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from deadpool.backend.peer_connections import PeerConnections
from deadpool.backend.sockets import (
    OpenSocket,
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
    """One supervised call. `settled` is set by its end or by whoever gives it up."""

    what: str
    before: frozenset[OpenSocket]
    connections: int | None
    keep: bool
    settled: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None
    given_up: bool = False


class Supervisor:
    """Makes calls that can be aborted, and remembers the sockets that they opened."""

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
        """How often abort() was called: lets a caller tell an abort it knows of from a newer one."""
        return self._abort_count

    @property
    def is_aborted(self) -> bool:
        return self._aborted

    def listen_through(self, open_ports: Callable[[], object]) -> None:
        """What comes in through the ports that `open_ports` opens is ours."""
        before = open_sockets()
        open_ports()
        self._own_ports |= listening_ports(open_sockets() - before)

    def abort(self) -> int:
        """Any thread. Ends every connection and the call that runs now; new calls fail until allow()."""
        with self._lock:
            self._aborted = True
            self._abort_count += 1
            incoming = accepted_on(open_sockets(), self._own_ports)
            return self._shut_everything() + shut_all(incoming)

    def allow(self, *, after_abort: int | None = None) -> None:
        """Calls may be made again. Refused when there was an abort that the caller does not know of.

        What came in since is not touched: a peer that is ahead may have begun to connect for what is made next.
        """
        with self._lock:
            if after_abort is not None and after_abort != self._abort_count:
                raise GroupError(f"aborted again: {self._abort_count} aborts, the caller knows of {after_abort}")
            self._shut_everything()
            self._aborted = False

    def name_newest(self, group: str) -> None:
        """The group that was made last is this one."""
        with self._lock:
            self._peers.name(group)

    def forget(self, group: str) -> None:
        """Its connections are not expected to last any longer."""
        with self._lock:
            self._peers.forget(group)

    def missing(self) -> dict[tuple[str, ...], int]:
        """How many connections have ended, by the groups they may have been of. Nothing while groups are aborted."""
        with self._lock:
            return self._peers.missing()

    def accept_missing(self, group: str, count: int) -> None:
        with self._lock:
            self._peers.accept(group, count)

    def run(
        self,
        what: str,
        work: Callable[[], T],
        *,
        connections: int | None = None,
        keep: bool = True,
        wait_s: float | None = None,
    ) -> T:
        """Returns what `work` returns, or raises GroupError: it failed, it was aborted, or wait_s passed.

        `connections`: how many native ones the work makes when it succeeds; None if that is not known. `keep`: False
        where somebody else ends them once the call has succeeded.
        """
        call = self._begin(what, connections, keep)
        threading.Thread(target=self._work, args=(call, work), name=f"deadpool {what}", daemon=True).start()
        in_time = call.settled.wait(wait_s)
        with self._lock:
            return self._end(call, in_time, wait_s)

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
                self._keep(_without_strangers(connected(made), call.connections), call.connections)
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
        """What it connected to others. What came in is no call's: gloo's own is known by its port."""
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


def _without_strangers(found: frozenset[OpenSocket], expected: int | None) -> frozenset[OpenSocket]:
    if expected is None or len(found) <= expected:  # the usual case: no need to look at every object there is
        return found
    return found - owned_by_python(found)
