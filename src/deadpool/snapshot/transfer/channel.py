"""A client's streams to one peer, from the greeting on.

`authenticate` opens a stream between two agents: with TLS if the job uses it, then both sides prove that they know
the secret.

`Channel` and `ChannelPool`: the client's streams to one peer: opened when needed, kept between transfers, used by
one transfer at a time.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from deadpool.errors import TransferError, VersionMismatch, WireError
from deadpool.protocol.identity import Generation
from deadpool.snapshot.transfer.connection import Connection
from deadpool.snapshot.transfer.frames import Kind
from deadpool.wire.credentials import Credentials, carrier_of_server
from deadpool.wire.handshake import PLAIN, Handshake, Role


def authenticate(connection: Connection, credentials: Credentials, role: Role) -> None:
    """Raises WireError if the peer does not belong to this job, and ConnectionLost if it is too slow."""
    carrier = _encrypt(connection, credentials, role)
    handshake = Handshake(credentials.secret, role, "data", carrier)
    connection.send_raw(handshake.opening())
    while not handshake.done:
        data = bytearray(handshake.needed)
        connection.receive_into(memoryview(data))
        try:
            answer = handshake.feed(bytes(data))
        except VersionMismatch as error:
            connection.send_raw(error.last_words)
            raise VersionMismatch(f"{connection.peer} is refused: {error.found}") from error
        except WireError as error:
            raise WireError(f"{connection.peer} does not belong to this job: {error}") from error
        connection.send_raw(answer)


def _encrypt(connection: Connection, credentials: Credentials, role: Role) -> bytes:
    """Encrypts the connection if the job uses TLS. Returns the identity of its carrier, which the proof includes."""
    if credentials.tls is None:
        return PLAIN
    if role == "client":
        return carrier_of_server(connection.encrypt(credentials.tls.client, server_side=False))
    assert credentials.tls.server is not None, "a process that serves has a certificate"
    connection.encrypt(credentials.tls.server, server_side=True)
    return credentials.carrier


TransferAddress = tuple[str, int]

_RENEW_BYTES = 256 << 30  # then a new connection gets new keys: a TLS key must not encrypt much more than that


class Channel:
    """The streams to one peer. A channel belongs to one generation, and a fence ends it."""

    def __init__(
        self, address: TransferAddress, generation: Generation, credentials: Credentials, deadline_s: float
    ) -> None:
        self.address = address
        self.generation = generation
        self.peer = f"{address[0]}:{address[1]}"
        self._credentials = credentials
        self._deadline_s = deadline_s
        self._connections: list[Connection] = []
        self._lock = threading.Lock()
        self._cut_reason: str | None = None

    @property
    def lead(self) -> Connection:
        return self.streams(1)[0]

    def streams(self, count: int) -> list[Connection]:
        """Returns that many open streams; the first one is the lead."""
        while len(self._connections) < count:
            self._open()
        return self._connections[:count]

    def run(self, count: int, work: Callable[[Connection], None]) -> None:
        """Runs `work` on that many streams in parallel, returns when all have ended, and raises the first error.

        A stream that fails cuts the others, so that none of them continues a transfer that is lost.
        """
        errors: list[BaseException] = []

        def guarded(connection: Connection) -> None:
            try:
                work(connection)
            except BaseException as error:
                errors.append(error)
                self.cut(f"another stream failed: {error}")

        lead, *others = self.streams(count)
        threads = [
            threading.Thread(target=guarded, args=(other,), name=f"transfer-to-{self.peer}-{index}")
            for index, other in enumerate(others, start=1)
        ]
        for thread in threads:
            thread.start()
        guarded(lead)
        for thread in threads:
            thread.join()  # bounded by the sockets' timeouts; an earlier return would leave a writer behind
        if errors:
            raise errors[0]

    @property
    def bytes_sent(self) -> int:
        """Returns the bytes sent over all its streams since they were opened."""
        return sum(connection.bytes_sent for connection in self._connections)

    def cut(self, reason: str) -> None:
        """Ends every wait on this channel. Any thread may call it."""
        with self._lock:
            self._cut_reason = self._cut_reason or reason
            connections = tuple(self._connections)
        for connection in connections:
            connection.cut(reason)

    def close(self) -> None:
        """Closes all streams. The transfer that uses the channel calls it, or the pool if no transfer does."""
        self.cut("closed")
        for connection in self._connections:
            connection.close()

    def _open(self) -> None:
        try:
            sock = socket.create_connection(self.address, timeout=self._deadline_s)
        except OSError as error:
            raise TransferError(f"{self.peer}: cannot connect: {error}") from error
        connection = Connection(sock, self.peer, self._deadline_s)
        with self._lock:
            self._connections.append(connection)
            reason = self._cut_reason
        if reason is not None:
            raise TransferError(f"{self.peer}: {reason}")
        self._greet(connection)

    def _greet(self, connection: Connection) -> None:
        authenticate(connection, self._credentials, "client")
        connection.generation = self.generation
        connection.send(Kind.HELLO, [])
        connection.expect(Kind.ACCEPT)


class ChannelPool:
    """Idle and busy channels of one client."""

    def __init__(self, credentials: Credentials, deadline_s: float) -> None:
        self._credentials = credentials
        self._deadline_s = deadline_s
        self._floor: Generation | None = None
        self._closed = False
        self._idle: list[Channel] = []
        self._busy: set[Channel] = set()
        self._changed = threading.Condition()

    def use_deadline(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s

    def take(self, address: TransferAddress, generation: Generation) -> Channel:
        with self._changed:
            if self._closed or (self._floor is not None and generation < self._floor):
                raise TransferError(f"generation {generation} is over: nothing is sent or fetched for it")
            channel = self._idle_for(address, generation)
            self._busy.add(channel)
            return channel

    def _idle_for(self, address: TransferAddress, generation: Generation) -> Channel:
        for channel in self._idle:
            if channel.address == address and channel.generation == generation:
                self._idle.remove(channel)
                return channel
        return Channel(address, generation, self._credentials, self._deadline_s)

    def give(self, channel: Channel, *, healthy: bool) -> None:
        with self._changed:
            over = self._closed or (self._floor is not None and channel.generation < self._floor)
            keep = healthy and not over and channel.bytes_sent < _RENEW_BYTES
            if keep:
                self._idle.append(channel)
        if not keep:
            channel.close()
        with self._changed:
            self._busy.discard(channel)
            self._changed.notify_all()

    def fence(self, generation: Generation) -> None:
        with self._changed:
            self._floor = generation if self._floor is None else max(self._floor, generation)
        self._end(lambda channel: channel.generation < generation, f"fenced by {generation}")

    def close(self) -> None:
        with self._changed:
            self._closed = True
        self._end(lambda channel: True, "closing")

    def _end(self, doomed: Callable[[Channel], bool], reason: str) -> None:
        with self._changed:
            idle = [channel for channel in self._idle if doomed(channel)]
            self._idle = [channel for channel in self._idle if not doomed(channel)]
            busy = [channel for channel in self._busy if doomed(channel)]
        for channel in busy:
            channel.cut(reason)
        for channel in idle:
            channel.close()
        with self._changed:
            ended = self._changed.wait_for(lambda: self._busy.isdisjoint(busy), timeout=3 * self._deadline_s)
        if not ended:
            raise TransferError(
                f"{reason}, but transfers with these peers do not end: {', '.join(c.peer for c in busy)}"
            )
