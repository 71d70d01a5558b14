"""Bulk bytes by NIXL, which uses RDMA where there is a device: a process of its own beside the agent reads them.

What goes wrong is answered in one way: the chunk comes over its stream. A process that ends, or falls silent, is
replaced after a while. A source that could not be read is not tried again until another process has taken its place.
A read that somebody waits for has ended when its process has said so, or is reaped (rule 11, one writer per slot).
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.transfer.nixl_child import NixlChild
from deadpool.snapshot.transfer.nixl_messages import ReadEnded
from deadpool.snapshot.transfer.transport import Transport, Window

PATIENCE_S = 2.0
"""How long a read of one chunk may take. A peer waits for it, whose own deadline is five times as long."""
_CUT_S = 0.1  # how long a read goes on that nobody wants any more: a chunk takes less
_LOOK_S = 0.02
_NO_END = "a read did not end"
_FIRST_PAUSE_S = 1.0
_LASTED_S = 60.0


@dataclass(frozen=True, slots=True)
class _Known:
    number: int
    segment: Segment
    address: int  # in this process

    def offset_of(self, address: int, size: int) -> int | None:
        offset = address - self.address
        return offset if offset >= 0 and offset + size <= self.segment.total_bytes else None


class NixlTransport(Transport):
    def __init__(
        self,
        note: Callable[[str], None],
        patience_s: float = PATIENCE_S,
        longest_pause_s: float = 60.0,
        on_ready: Callable[[], None] = lambda: None,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """`note` is told, once per reason and from any thread, why bytes go by TCP for now; `on_ready` is called when
        the first process works, and `prepare` in the thread whose priority and CPUs the processes get."""
        self._note, self._patience_s, self._longest_pause_s = note, patience_s, longest_pause_s
        self._on_ready, self._prepare = on_ready, prepare
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._known: dict[int, _Known] = {}  # by descriptor
        self._child: NixlChild | None = None
        self._failed: set[bytes] = set()  # sources
        self._told: set[str] = set()
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="nixl-process")

    def start(self) -> None:
        self._keeper.start()

    @property
    def pid(self) -> int | None:
        """The id of the process, while there is one."""
        child = self._child
        return child.pid if child is not None else None

    @property
    def reads(self) -> bool:
        child = self._child
        return child is not None and child.usable

    def window(self, fd: int, offset: int, size: int) -> Window | None:
        child, known = self._child, self._known.get(fd)
        mapped = child.mapped(known.number) if child is not None and known is not None else None
        if child is None or mapped is None:
            return None
        child.serve()
        return Window(source=child.source, metadata=mapped.metadata, address=mapped.address + offset)

    def read(self, window: Window, into: memoryview, wanted: Callable[[], bool]) -> bool:
        child, place = self._child, self._place(into)
        if child is None or place is None or window.source in self._failed or child.mapped(place[0]) is None:
            return False
        answer = child.read(
            metadata=window.metadata, address=window.address, size=len(into), segment=place[0], offset=place[1]
        )
        ended = self._wait(child, answer, wanted)
        if ended is not None and ended.failure and ended.begun:
            child.end(ended.failure)  # some of it may still be under way, and the bytes are to come over the stream
        if ended is not None and ended.failure and wanted():
            self._failed.add(window.source)
            self._tell(f"a copy could not be read: {ended.failure}")
        return ended is not None and not ended.failure

    def _wait(self, child: NixlChild, answer: Future[ReadEnded | None], wanted: Callable[[], bool]) -> ReadEnded | None:
        """Returns how the read has ended; None: this node's own process was over."""
        limit = time.monotonic() + self._patience_s
        while True:
            with contextlib.suppress(TimeoutError):
                return answer.result(_LOOK_S)
            if not wanted():
                limit = min(limit, time.monotonic() + _CUT_S)
            if time.monotonic() >= limit:
                child.end(_NO_END)
                return ReadEnded(number=0, failure=_NO_END)

    def _place(self, view: memoryview) -> tuple[int, int] | None:
        """The segment that a part of a slot lies in, and where."""
        address = int(np.frombuffer(view, dtype=np.uint8).ctypes.data)
        with self._lock:
            for known in self._known.values():
                if (offset := known.offset_of(address, len(view))) is not None:
                    return known.number, offset
        return None

    def add(self, segment: Segment) -> None:
        with segment.view() as view:
            address = int(np.frombuffer(view, dtype=np.uint8).ctypes.data)
        with self._lock:
            known = _Known(next(self._numbers), segment, address)
            self._known[segment.fd] = known
            if self._child is not None:
                self._child.map(known.number, segment)

    def drop(self, segment: Segment) -> None:
        with self._lock:
            known = self._known.pop(segment.fd, None)
            if known is not None and self._child is not None:
                self._child.unmap(known.number)

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            child = self._child
        if child is not None:
            child.end("the agent leaves")
        self._keeper.join()

    # --- the thread that keeps a process

    def _keep(self) -> None:
        self._prepare()
        pause_s = _FIRST_PAUSE_S
        while not self._closing.is_set():
            began = time.monotonic()
            reason = self._run_one()
            if self._closing.is_set():
                return
            self._tell(f"the NIXL process is gone: {reason}")
            self._closing.wait(min(pause_s, self._longest_pause_s))
            pause_s = _FIRST_PAUSE_S if time.monotonic() - began > _LASTED_S else 2 * pause_s

    def _run_one(self) -> str:
        child = NixlChild(self._patience_s)
        with self._lock:
            self._child = child
            for known in self._known.values():
                child.map(known.number, known.segment)
        if self._closing.is_set():
            child.end("the agent leaves")
        try:
            return child.attend(self._tell_ready)
        finally:
            with self._lock:
                self._child = None

    def _tell_ready(self) -> None:
        tell, self._on_ready = self._on_ready, lambda: None
        tell()

    def _tell(self, reason: str) -> None:
        with self._lock:
            new = reason not in self._told
            self._told.add(reason)
        if new:
            self._note(reason)
