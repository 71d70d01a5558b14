"""How an agent stays connected, and what it keeps until it is.

`CoordinatorClient`: how an agent stays connected to a coordinator: it tries one address after the other until a
coordinator accepts it, and again whenever that connection has ended. What the loss of a connection means is decided
by the core.

`UnsentReports`: what an agent has to report while no coordinator takes it: bounded, and what is dropped is counted.

`unreachable`: whether other nodes can be reached: a TCP connection to each of them, closed as soon as it is there.
"""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence

from deadpool.control.console import print_line
from deadpool.errors import VersionMismatch, WireError
from deadpool.events.event import Event
from deadpool.protocol.agent.leadership.coordinator_session import CoordinatorSearch
from deadpool.protocol.identity import Address, Message
from deadpool.protocol.inputs import AgentInput, CoordinatorFound, CoordinatorLost, FromCoordinator
from deadpool.protocol.messages import Examine, Injection, Join, Order, Peer, Report, Welcome
from deadpool.wire.control_link import ControlLink, connect
from deadpool.wire.credentials import Credentials

_ATTEMPT_S = 1.0  # for a coordinator to answer, before the next one is tried
_PAUSE_S = 0.2  # between two rounds


class CoordinatorClient:
    def __init__(
        self,
        coordinators: Sequence[Address],
        credentials: Credentials,
        *,
        join: Callable[[], Join],
        feed: Callable[[AgentInput], None],
        order: Callable[[Examine | Injection], None],
    ) -> None:
        """`join` gives the first message of a connection. `feed` takes inputs for the core. `order` takes messages that
        belong to no term: faults to inject, and examinations."""
        self._coordinators, self._credentials = tuple(coordinators), credentials
        self._join, self._feed, self._order = join, feed, order
        self._search = CoordinatorSearch()
        self._link: ControlLink | None = None
        self._refusals: dict[Address, VersionMismatch] = {}  # coordinators of another version of DeadPool
        self._reason = ""  # why the newest attempt failed, where a process answered
        self.is_accepted = False  # by the coordinator at the other end of this connection

    async def connect_first(self, patience_s: float) -> None:
        """Makes the first connection. Raises TimeoutError if no coordinator answers, and VersionMismatch if all that
        answer run another version of DeadPool."""
        deadline = time.monotonic() + patience_s
        while self._link is None:
            if time.monotonic() > deadline:
                raise TimeoutError(self._reason)
            self._link = await self._connect_next()
            if self._link is None and self._refusals and self._search.is_over(len(self._coordinators)):
                raise next(iter(self._refusals.values()))

    async def stay_connected(self) -> None:
        """Runs until it is cancelled."""
        while True:
            if self._link is None:
                self._link = await self._connect_next()
                continue
            self._feed(CoordinatorFound(patience=self._search.accepted(len(self._coordinators))))
            self._link.send(self._join())
            reason = await self._listen(self._link)
            self._link, self.is_accepted = None, False
            self._feed(CoordinatorLost(reason=reason))

    def send(self, message: Message) -> None:
        """Sends a message, or drops it without a connection: a coordinator asks for what it has to know."""
        if self._link is not None:
            self._link.send(message)

    def disconnect(self) -> None:
        if self._link is not None:
            self._link.abort()

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()

    async def _connect_next(self) -> ControlLink | None:
        """One attempt, at the next address."""
        count = len(self._coordinators)
        address = self._coordinators[self._search.choose(count)]
        try:
            return await connect(address, self._credentials, patience_s=_ATTEMPT_S)
        except VersionMismatch as error:
            self._on_mismatch(address, error)
        except WireError as error:
            self._on_refused(str(error))
        except (TimeoutError, OSError):
            pass  # no process answers there yet
        if self._search.is_over(count):
            await asyncio.sleep(_PAUSE_S)
        return None

    def _on_mismatch(self, address: Address, error: VersionMismatch) -> None:
        """The job goes on with the other coordinators, if there are any, so people have to be told: once for each."""
        if address not in self._refusals:
            self._refusals[address] = error
            print_line(f"[deadpool] {error}")

    def _on_refused(self, reason: str) -> None:
        """Tells people once that this node was refused. It may be another job's coordinator that will be gone soon, so
        the node tries on.
        """
        if not self._reason:
            print_line(f"[deadpool] {reason}; does this node have the job's secret and --tls? It tries again")
        self._reason = reason

    async def _listen(self, link: ControlLink) -> str:
        """Runs until the connection ends. Returns the reason."""
        try:
            async for message in link.messages():
                self._on_message(message)
        except WireError as error:
            print_line(f"[deadpool] the coordinator's message cannot be read, the node calls it again: {error}")
            link.abort()
            return str(error)
        return link.lost_reason

    def _on_message(self, message: Message) -> None:
        match message:
            case Order(term=term, message=order):
                if isinstance(order, Welcome):
                    self._coordinators = order.settings.coordinators or self._coordinators
                    self._search.start_over()
                    self.is_accepted = True
                self._feed(FromCoordinator(term=term, message=order))
            case Examine() | Injection():
                self._order(message)
            case _:
                raise WireError(f"a {type(message).__name__} is not for an agent")


LIMIT = 1000
"""Events that wait for a coordinator to log them; beyond that the oldest are dropped."""


class UnsentReports:
    def __init__(self, node: str) -> None:
        self._node = node
        self._reports: deque[Report] = deque()
        self._dropped = 0

    def add(self, report: Report) -> None:
        self._reports.append(report)
        if len(self._reports) > LIMIT:
            self._dropped += len(self._reports.popleft().records)

    def send(self, send: Callable[[Report], None], tell: Callable[[Event], None]) -> None:
        """`tell` is given the event that says how many are lost, after those that are not."""
        while self._reports:
            send(self._reports.popleft())
        if self._dropped:
            count, self._dropped = self._dropped, 0
            tell(Event(what="events_dropped", node=self._node, detail={"count": count}))


PROBE_S = 1.5
"""Longer than it takes the kernel to send a lost first packet again."""
_ANSWERED = (0, errno.ECONNREFUSED, errno.ECONNRESET)
"""What the network says where the other machine answers, be it that no process listens there any more."""


def unreachable(peers: Sequence[Peer], timeout_s: float = PROBE_S) -> tuple[str, ...]:
    """The nodes that do not answer. Connections are made by the kernels of both sides: it makes no difference whether a
    process is slow, here or there."""
    pending: dict[socket.socket, str] = {}
    no_way: list[str] = []
    try:
        for peer in peers:
            sock = socket.socket(socket.AF_INET6 if ":" in peer.address.host else socket.AF_INET)
            sock.setblocking(False)
            code = sock.connect_ex((peer.address.host, peer.address.port))
            if code == errno.EINPROGRESS:
                pending[sock] = peer.node
                continue
            sock.close()
            if code not in _ANSWERED:
                no_way.append(peer.node)  # the error is told once: the socket itself would seem well afterwards
        _await(pending, time.monotonic() + timeout_s)
        return (*no_way, *pending.values())
    finally:
        for sock in pending:
            sock.close()


def _await(pending: dict[socket.socket, str], deadline: float) -> None:
    """Removes those that answer in time. Looks once more after the deadline: this process may not have run before."""
    by_descriptor = {sock.fileno(): sock for sock in pending}
    poller = select.poll()
    for descriptor in by_descriptor:
        poller.register(descriptor, select.POLLOUT)
    is_last = False
    while by_descriptor and not is_last:
        left_s = deadline - time.monotonic()
        is_last = left_s <= 0
        for descriptor, _ in poller.poll(1e3 * max(0.0, left_s)):
            sock = by_descriptor.pop(descriptor)
            poller.unregister(descriptor)
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _ANSWERED:
                del pending[sock]
                sock.close()
