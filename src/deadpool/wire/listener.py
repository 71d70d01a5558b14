"""A listening port, and the strangers at it.

`PreauthLimit`: Connections that have not proved the secret yet: how many there may be, and which has to go. Values
and time only.

Members that connect all at once wait in the kernel's queue and are let in as fast as handshakes end. Whoever
occupies a place and does nothing loses it to the next connection. There is no lock: each listener has one thread or
loop that asks.

`RefusedPeer` and `AuthenticatedListener`: a listening port of the control plane, for asyncio. It lets in only peers
that prove the job's secret.

Unauthenticated connections cost little: their number, their time and the reports about them are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from deadpool.errors import VersionMismatch, WireError
from deadpool.protocol.identity import Address
from deadpool.wire.credentials import Credentials
from deadpool.wire.handshake import Handshake, Purpose
from deadpool.wire.streams import HANDSHAKE_S, shake_hands

LIMIT = 128
GRACE_S = 0.5  # a handshake takes milliseconds: one that has not ended by then is stuck

_Peer = TypeVar("_Peer")


class PreauthLimit(Generic[_Peer]):
    def __init__(self, limit: int = LIMIT, grace_s: float = GRACE_S) -> None:
        self._limit, self._grace_s = limit, grace_s
        self._since: dict[_Peer, float] = {}  # in order of arrival

    def __len__(self) -> int:
        return len(self._since)

    def arrived(self, peer: _Peer, now: float) -> None:
        self._since[peer] = now

    def known(self, peer: _Peer) -> None:
        """Counts a peer no more: it has proved the secret, or it is gone."""
        self._since.pop(peer, None)

    def wait_s(self, now: float) -> float:
        """How long to wait before the next one is let in; 0: now, after crowded_out() has made room."""
        if len(self._since) < self._limit:
            return 0.0
        return max(0.0, next(iter(self._since.values())) + self._grace_s - now)

    def crowded_out(self, now: float) -> _Peer | None:
        """The connection that has to be closed for the next one, if any."""
        if len(self._since) < self._limit or self.wait_s(now) > 0:
            return None
        oldest = next(iter(self._since))
        del self._since[oldest]
        return oldest


_BACKLOG = 4096  # all nodes of a large job may come at once
_TELL_EVERY_S = 5.0

Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Visit = asyncio.Task[None]


@dataclass(frozen=True, slots=True)
class RefusedPeer:
    """A peer that was not let in. The error says why."""

    peer: str
    error: TimeoutError | OSError | WireError

    @property
    def why(self) -> str:
        found = "is refused" if isinstance(self.error, VersionMismatch) else "is not one of this job"
        return f"{found}: {str(self.error) or 'it is too slow'}"

    @property
    def sentence(self) -> str:
        return f"peer {self.peer} {self.why}"


class AuthenticatedListener:
    """`converse` is called with the streams of each authenticated peer, and the connection ends when it returns.

    `refused` is called for peers that were not let in, with the one that stands for most of them, and with their number
    since the last call.
    """

    def __init__(
        self,
        credentials: Credentials,
        purpose: Purpose,
        converse: Conversation,
        refused: Callable[[RefusedPeer, int], None] | None = None,
    ) -> None:
        self._credentials, self._purpose, self._converse = credentials, purpose, converse
        self._refused = refused
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._unauthenticated: PreauthLimit[Visit] = PreauthLimit()
        self._visits: set[Visit] = set()
        self._untold: Counter[str] = Counter()  # refused peers, by reason
        self._newest: dict[str, RefusedPeer] = {}  # the last one that was refused for a reason
        self._told_at = -_TELL_EVERY_S

    async def start(self, host: str, port: int) -> Address:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(self._listener))
        return Address(host=host, port=self._listener.getsockname()[1])

    async def stop_listening(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        self._report_refusals()

    async def close(self) -> None:
        """Ends all conversations. May be called twice."""
        await self.stop_listening()
        for visit in list(self._visits):
            visit.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)

    # --- unauthenticated peers ----------------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(0.05)  # out of descriptors, or gone while it waited: no reason to end
                continue
            try:
                await self._make_room()
            except asyncio.CancelledError:
                sock.close()
                raise
            self._begin(sock)

    async def _make_room(self) -> None:
        while (wait_s := self._unauthenticated.wait_s(time.monotonic())) > 0:
            await asyncio.sleep(min(wait_s, 0.01))
        if (oldest := self._unauthenticated.crowded_out(time.monotonic())) is not None:
            oldest.cancel()

    def _begin(self, sock: socket.socket) -> None:
        visit = asyncio.get_running_loop().create_task(self._visit(sock))
        self._visits.add(visit)
        self._unauthenticated.arrived(visit, time.monotonic())
        visit.add_done_callback(self._ended)

    def _ended(self, visit: Visit) -> None:
        self._visits.discard(visit)
        self._unauthenticated.known(visit)

    async def _visit(self, sock: socket.socket) -> None:
        peer = _name(sock)
        visit = asyncio.current_task()
        assert visit is not None
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                reader, writer = await self._let_in(sock)
        except (TimeoutError, OSError, WireError) as error:
            sock.close()
            self._note(RefusedPeer(peer, error))
            return
        except asyncio.CancelledError:
            sock.close()  # crowded out, or we are closing
            return
        self._unauthenticated.known(visit)
        try:
            await self._converse(reader, writer)
        except asyncio.CancelledError:
            return  # only close() does that
        finally:
            writer.transport.abort()

    async def _let_in(self, sock: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self._open(sock)
        try:
            secret, carrier = self._credentials.secret, self._credentials.carrier
            await shake_hands(reader, writer, Handshake(secret, "server", self._purpose, carrier))
        except BaseException:
            writer.transport.abort()
            raise
        return reader, writer

    async def _open(self, sock: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop, tls = asyncio.get_running_loop(), self._credentials.tls
        reader = asyncio.StreamReader(loop=loop)
        protocol = _UntilItHangsUp(reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock, ssl=tls.server if tls else None)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def _note(self, refused: RefusedPeer) -> None:
        """Counts refusals, and reports them seldom: a peer that connects all day must not fill the disk."""
        self._untold[refused.why] += 1
        self._newest[refused.why] = refused
        if time.monotonic() >= self._told_at + _TELL_EVERY_S:
            self._report_refusals()

    def _report_refusals(self) -> None:
        """The most frequent reason: a peer whose secret is wrong asks once more as an older version would."""
        if self._refused is not None and self._untold:
            reason, _ = self._untold.most_common(1)[0]
            self._refused(self._newest[reason], self._untold.total())
        self._untold.clear()
        self._newest.clear()
        self._told_at = time.monotonic()


class _UntilItHangsUp(asyncio.StreamReaderProtocol):
    """A peer that has closed its side waits for no answer, so the transport closes the connection."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


def _name(sock: socket.socket) -> str:
    with contextlib.suppress(OSError):
        host, port, *_ = sock.getpeername()
        return f"{host}:{port}"
    return "unknown"
