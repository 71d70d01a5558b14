"""The server of the data plane, one per agent: it stores snapshots that this node holds for others, and serves them.

It owns its port, its connections and their threads. The agent uses it through Callbacks, fence() and close().
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable

from deadpool.errors import DeadPoolError, TransferError, VersionMismatch, WireError
from deadpool.protocol.causes import Refusal
from deadpool.protocol.identity import NO_GENERATION, Generation, Version
from deadpool.protocol.seal import Geometry, Seal
from deadpool.snapshot.transfer.callbacks import Callbacks, FoundCopy, JointFrames, TransferRefused
from deadpool.snapshot.transfer.channel import authenticate
from deadpool.snapshot.transfer.connection import Connection
from deadpool.snapshot.transfer.frames import Kind
from deadpool.snapshot.transfer.session import Transfers, TransferSession
from deadpool.snapshot.transfer.transport import OverTcp, Transport
from deadpool.wire.credentials import Credentials
from deadpool.wire.listener import PreauthLimit

_log = logging.getLogger(__name__)
_CONNECTION_LIMIT = 1024


class TransferServer:
    def __init__(
        self,
        *,
        host: str,
        credentials: Credentials,
        open: Callable[[Seal, Generation, Geometry], memoryview | TransferRefused],
        stored: Callable[[Seal], None],
        dropped: Callable[[Seal, str], None],
        find: Callable[[int, Version], FoundCopy | None],
        joint: Callable[[Connection], JointFrames] = JointFrames,
        deadline_s: float = 10.0,
        port: int = 0,
        transport: Transport | None = None,
    ) -> None:
        self._callbacks = Callbacks(open=open, stored=stored, dropped=dropped, find=find)
        self._joint = joint
        self._transport = transport or OverTcp()
        self._address = (host, port)
        self._credentials = credentials
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._floor = NO_GENERATION
        self._closing = False
        self._threads: dict[Connection, threading.Thread] = {}
        self._unauthenticated: PreauthLimit[Connection] = PreauthLimit()
        self._transfers: Transfers = {}
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None

    def use_deadline(self, deadline_s: float) -> None:
        """Sets the deadline of streams that are opened from now on."""
        self._deadline_s = deadline_s

    def start(self) -> tuple[str, int]:
        """Starts to listen, and returns the address for peers."""
        assert self._listener is None, "started twice"
        self._listener = socket.create_server(self._address, backlog=256)
        host, port = self._listener.getsockname()[:2]
        self._acceptor = threading.Thread(target=self._accept, args=(self._listener,), name=f"transfer-accept-{port}")
        self._acceptor.start()
        return host, port

    def fence(self, generation: Generation) -> None:
        """Refuses older generations from now on, cuts their streams, and returns when their writers have ended.

        After this no slot is written, stored or dropped on behalf of an older generation (rule 12, the fence freezes a
        node). It raises a TransferError if a writer does not end, which only a callback that hangs can cause.
        """
        with self._lock:
            self._floor = max(self._floor, generation)
            bound = [(c, t) for c, t in self._threads.items() if c.generation is not None]
        self._end(
            [(c, t) for c, t in bound if c.generation and c.generation < generation],
            f"fenced by {generation}",
        )

    def close(self) -> None:
        """Stops listening, cuts all streams and waits for their threads. It may be called twice."""
        with self._lock:
            self._closing = True
            everything = list(self._threads.items())
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept(); close() alone would not
            self._listener.close()
        if self._acceptor is not None:
            self._acceptor.join(self._deadline_s)
        self._end(everything, "closing")

    def _end(self, doomed: list[tuple[Connection, threading.Thread]], reason: str) -> None:
        for connection, _ in doomed:
            connection.cut(reason)
        limit = time.monotonic() + 2 * self._deadline_s
        for _, thread in doomed:
            if thread is not threading.current_thread():
                thread.join(max(0.0, limit - time.monotonic()))
        stuck = [thread.name for _, thread in doomed if thread.is_alive()]
        if stuck:
            raise TransferError(f"{reason}, but these writers do not end: {', '.join(stuck)}")

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, (host, port, *_) = listener.accept()
                connection = Connection(sock, f"{host}:{port}", self._deadline_s)
            except OSError:
                if self._closing:
                    return
                time.sleep(0.05)  # no descriptor was free, or a peer left in the queue: neither is a reason to end
                continue
            self._make_room()
            self._take(connection)

    def _make_room(self) -> None:
        """Waits until a handshake ends, or cuts the oldest unauthenticated connection to make room for the next one."""
        while not self._closing and (wait_s := self._preauth_wait_s()) > 0:
            time.sleep(min(wait_s, 0.01))
        with self._lock:
            oldest = self._unauthenticated.crowded_out(time.monotonic())
        if oldest is not None:
            oldest.cut("crowded out")

    def _preauth_wait_s(self) -> float:
        with self._lock:
            return self._unauthenticated.wait_s(time.monotonic())

    def _take(self, connection: Connection) -> None:
        thread = threading.Thread(target=self._serve, args=(connection,), name=f"transfer-{connection.peer}")
        with self._lock:
            refused = self._closing or len(self._threads) >= _CONNECTION_LIMIT
            if not refused:
                self._threads[connection] = thread
                self._unauthenticated.arrived(connection, time.monotonic())
                thread.start()
        if refused:
            connection.close()

    def _serve(self, connection: Connection) -> None:
        try:
            authenticate(connection, self._credentials, "server")
            self._greet(connection)
            self._forget_unproved(connection)
            joint = self._joint(connection)
            TransferSession(connection, self._callbacks, joint, self._transfers, self._admit, self._transport).run()
        except VersionMismatch as error:
            _log.warning("%s", error)
        except DeadPoolError as error:
            _log.debug("connection ended: %s", error)
        except Exception:
            _log.exception("connection of %s ended by a bug", connection.peer)
        finally:
            connection.close()
            self._forget_unproved(connection)
            with self._lock:
                self._threads.pop(connection, None)

    def _forget_unproved(self, connection: Connection) -> None:
        with self._lock:
            self._unauthenticated.known(connection)

    def _greet(self, connection: Connection) -> None:
        frame = connection.receive()
        if frame.head.kind is not Kind.HELLO:
            raise WireError(f"{connection.peer}: {frame.head.kind.name} before HELLO")
        with self._lock:  # so that a fence sees this connection, or this connection sees the fence
            connection.generation = frame.head.generation
            floor = self._floor
        if frame.head.generation < floor:
            reason = f"generation {frame.head.generation} is over, this is {floor}"
            connection.refuse(Refusal.OTHER_GENERATION, reason)
        self._admit(frame.head.generation)
        connection.send(Kind.ACCEPT, [])

    def _admit(self, generation: Generation) -> None:
        if generation < self._floor:
            raise TransferError(f"generation {generation} is over, this is {self._floor}")
