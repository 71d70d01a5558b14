"""Unauthenticated peers at all ports of a running job, and a member that talks nonsense."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import psutil

from deadpool.control.launch.launcher import LocalJob
from deadpool.errors import WireError
from deadpool.protocol.identity import Generation
from deadpool.snapshot.transfer.frames import Kind, pack_frame
from deadpool.wire.codec import LIMIT_BYTES
from deadpool.wire.handshake import Handshake, Purpose

Port = tuple[str, int]
_PURPOSES: tuple[Purpose, ...] = ("control", "data", "rendezvous")
_CROWD = 40
_SHORT_S = 0.5


def ports_of(job: LocalJob) -> list[Port]:
    """Where the coordinator and the agents listen, by the kernel's word."""
    assert job.coordinator is not None
    found: list[Port] = []
    for pid in (job.coordinator.pid, *(node.pid for node in job.nodes.values())):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            listening = [c for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
            found += [(c.laddr.ip, c.laddr.port) for c in listening]
    return found


class NoisyPeers(threading.Thread):
    """From start() to stop(). `done` says how often what was done."""

    def __init__(self, job: LocalJob, secret: bytes) -> None:
        super().__init__(name="noisy-peers")
        self.done: Counter[str] = Counter()
        self._job, self._secret = job, secret
        self._over = threading.Event()
        self._random = random.Random(0)
        self._held: list[socket.socket] = []
        self._recorded: dict[Port, bytes] = {}

    def stop(self) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        acts: list[Callable[[Port], None]] = [
            self._garbage, self._silent_crowd, self._drip, self._replay, self._oversized, self._truncated,
            self._old_generation,
        ]  # fmt: skip
        for act in itertools.cycle(acts):
            for port in ports_of(self._job):
                with contextlib.suppress(OSError, WireError):
                    act(port)
                    self.done[act.__name__.strip("_")] += 1
            if self._over.wait(0.02):
                break
        self._let_go()

    # --- an unauthenticated peer --------------------------------------------------------------------------------------

    def _garbage(self, port: Port) -> None:
        with _reach(port) as sock:
            sock.sendall(self._random.randbytes(self._random.randrange(1, 5000)))
            _hear(sock)

    def _silent_crowd(self, port: Port) -> None:
        self._let_go()
        self._held = [_reach(port) for _ in range(_CROWD)]

    def _drip(self, port: Port) -> None:
        with _reach(port) as sock:
            for byte in Handshake(b"not the secret of it", "client", "data").opening()[:20]:
                sock.sendall(bytes([byte]))

    def _replay(self, port: Port) -> None:
        if port not in self._recorded:
            self._recorded[port] = b"".join(said for sock, said in self._as_member(port))
        with _reach(port) as sock:
            sock.sendall(self._recorded[port])
            assert len(_hear(sock)) <= 40, "a replayed handshake was believed"

    def _let_go(self) -> None:
        for sock in self._held:
            sock.close()
        self._held = []

    # --- one that knows the secret -----------------------------------------------------------------------------------

    def _oversized(self, port: Port) -> None:
        for sock, _ in self._as_member(port):
            sock.sendall((LIMIT_BYTES + 1).to_bytes(4, "big") + bytes(100))
            _hear(sock)

    def _truncated(self, port: Port) -> None:
        for sock, _ in self._as_member(port):
            sock.sendall((5000).to_bytes(4, "big") + bytes(100))

    def _old_generation(self, port: Port) -> None:
        for sock, _ in self._as_member(port):
            sock.sendall(pack_frame(Kind.HELLO, Generation(0, 0), []))
            _hear(sock)

    def _as_member(self, port: Port) -> Iterator[tuple[socket.socket, bytes]]:
        """Past the handshake, and what was said in it; for whichever purpose this port is."""
        for purpose in _PURPOSES:
            with contextlib.suppress(OSError, WireError), _reach(port) as sock:
                handshake = Handshake(self._secret, "client", purpose)
                said = [handshake.opening()]
                sock.sendall(said[0])
                while not handshake.done:
                    said.append(handshake.feed(_exactly(sock, handshake.needed)))
                    sock.sendall(said[-1])
                yield sock, b"".join(said)


def _reach(port: Port) -> socket.socket:
    return socket.create_connection(port, timeout=_SHORT_S)


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (chunk := sock.recv(count - len(data))):
            raise WireError("hung up")
        data += chunk
    return data


def _hear(sock: socket.socket) -> bytes:
    heard = b""
    with contextlib.suppress(OSError):
        while data := sock.recv(1000):
            heard += data
    return heard
