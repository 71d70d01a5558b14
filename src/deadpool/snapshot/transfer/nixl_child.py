"""One NIXL process as its agent sees it: started, spoken to, and ended whenever it does not do what it should.

It ends with the process (`over`), and only once that is reaped: then nothing writes to the agent's memory any more.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import assert_never

from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.transfer.nixl_messages import (
    LIMIT_BYTES,
    AskAlive,
    Broken,
    FromProcess,
    IsAlive,
    Map,
    Mapped,
    NotMapped,
    Read,
    ReadEnded,
    Ready,
    Serve,
    ToProcess,
    Unmap,
    decode_answer,
    encode,
)

_BEAT_S = 1.0
_START_S = 120.0  # a host with many network cards takes 15 s
_PIN_BYTES_PER_S = 0.5e9  # at least: a device may pin a segment page by page
_MODULE = "deadpool.snapshot.transfer.nixl_process"


class NixlChild:
    def __init__(self, patience_s: float) -> None:
        """Starts the process, which the kernel ends with this thread."""
        self.source = os.urandom(16)
        self.over = False
        self._patience_s = patience_s
        self._numbers = itertools.count()
        self._lock, self._sending, self._closed = threading.Lock(), threading.Lock(), False
        self._reads: dict[int, Future[ReadEnded | None]] = {}  # by number
        self._mapping: dict[int, int] = {}  # bytes by segment
        self._mapped: dict[int, Mapped] = {}
        self._ready = False
        self._on_ready: Callable[[], None] = lambda: None
        self._failure = ""
        self._asked_at = self._heard_at = time.monotonic()
        self._sock, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(far.fileno())],
                pass_fds=[far.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=_environment(),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether it can read now. While it maps memory, which may take long, it does nothing else."""
        return self._ready and not self._mapping and not self.over

    def mapped(self, segment: int) -> Mapped | None:
        return self._mapped.get(segment) if self.usable else None

    def map(self, number: int, segment: Segment) -> None:
        with self._lock:
            self._mapping[number] = segment.total_bytes
        self._send(Map(segment=number, size=segment.total_bytes), [segment.fd])

    def unmap(self, number: int) -> None:
        with self._lock:
            self._mapped.pop(number, None)
        self._send(Unmap(segment=number))

    def serve(self) -> None:
        self._send(Serve())

    def read(self, *, metadata: bytes, address: int, size: int, segment: int, offset: int) -> Future[ReadEnded | None]:
        """The result is None if the process was over before the read was."""
        number, answer = next(self._numbers), Future[ReadEnded | None]()
        with self._lock:
            if self.over:
                answer.set_result(None)
                return answer
            self._reads[number] = answer
        self._send(Read(number=number, metadata=metadata, address=address, size=size, segment=segment, offset=offset))
        return answer

    def _send(self, order: ToProcess, descriptors: list[int] | None = None) -> None:
        """An order that does not arrive has no answer, and whoever waits for that ends the process."""
        try:
            with self._sending:
                if not self._closed:
                    flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
                    socket.send_fds(self._sock, [encode(order)], descriptors or [], flags)
        except OSError as error:
            self._failure = self._failure or f"it takes no orders: {error}"

    # --- the thread that has started it

    def attend(self, on_ready: Callable[[], None]) -> str:
        """Takes its answers until it is over, and returns how it ended."""
        self._on_ready = on_ready
        while not self._failure:
            readable, _, _ = select.select([self._sock], [], [], _BEAT_S / 2)
            if not readable:
                self._watch()
                continue
            data = self._receive()
            if not data:
                self._failure = self._failure or f"it ended with code {self._process.wait()}"
                break
            self._heard_at = time.monotonic()
            self._on_answer(decode_answer(data))
        self.end(self._failure)
        with self._sending:
            self._closed = True
            self._sock.close()
        return self._failure

    def _receive(self) -> bytes:
        try:
            return self._sock.recv(LIMIT_BYTES)
        except ConnectionError:
            return b""  # it ended before it had read everything

    def _watch(self) -> None:
        now = time.monotonic()
        silent_s = now - self._heard_at
        if self._asked_at > self._heard_at:
            with self._lock:
                limit_s = self._patience_s + sum(self._mapping.values()) / _PIN_BYTES_PER_S
            if silent_s > limit_s:
                self._failure = f"it has not answered for {limit_s:g} s"
        elif silent_s > _BEAT_S and self._ready:
            self._asked_at = now
            self._send(AskAlive())
        elif silent_s > _START_S:
            self._failure = f"it was not ready after {_START_S:g} s"

    def _on_answer(self, answer: FromProcess) -> None:
        match answer:
            case Ready():
                self._ready = True
                self._on_ready()
            case Broken(reason=reason):
                self._failure = reason
            case Mapped(segment=number):
                with self._lock:
                    self._mapped[number] = answer
                    self._mapping.pop(number, None)
            case NotMapped(reason=reason):
                self._failure = f"it cannot register memory: {reason}"
            case ReadEnded(number=number):
                with self._lock:
                    waiting = self._reads.pop(number, None)
                if waiting is not None:
                    waiting.set_result(answer)
            case IsAlive():
                pass
            case _ as never:
                assert_never(never)

    # --- the end

    def end(self, reason: str) -> None:
        """Kills the process and returns when it is reaped. Any thread may call it."""
        self._failure = self._failure or reason
        self._process.kill()
        self._process.wait()
        with self._lock:
            self.over = True
            unanswered, self._reads = tuple(self._reads.values()), {}
        for waiting in unanswered:
            waiting.set_result(None)


def _environment() -> dict[str, str]:
    """Nothing of ours: the job's secret may be in it, and what the process listens at knows no secret."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DEADPOOL_")}
    return {"NIXL_LOG_LEVEL": "ERROR", "UCX_LOG_LEVEL": "error", **kept}
