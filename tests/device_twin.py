"""A lane for host memory that behaves like a device's: it comes to marks and batches when the test lets it.

The script's own work is done at once, as torch does it on the host; only that it *was* done is seen later.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from waiting import LIMIT_S

from deadpool.snapshot.copying.copy_stats import CaptureCost
from deadpool.snapshot.copying.lanes import HostBatch, HostLane


class TwinMark:
    def __init__(self, done: bool = False) -> None:
        self._event = threading.Event()
        if done:
            self._event.set()

    def done(self) -> bool:
        return self._event.is_set()

    def wait(self) -> None:
        assert self._event.wait(LIMIT_S), "the test never let the device come here"

    def come(self) -> None:
        self._event.set()


@dataclass(eq=False)
class Queued:
    start: TwinMark
    batch: HostBatch | None
    mark: TwinMark = field(default_factory=TwinMark)


class DeviceTwin(HostLane):
    def __init__(self, *, window_s: float = 0.0, aside_bytes: int = 0, clone_bytes_per_s: float = 1e12) -> None:
        super().__init__()
        self.aside_bytes, self._clone_bytes_per_s = aside_bytes, clone_bytes_per_s
        self.aside_user: TwinTrip | None = None
        self.computing = False  # True: marks of the script's work stay open until catch_up()
        self.copying = True  # False: batches stay queued until copy()
        self.holds = 0
        self.issued: list[int] = []
        self._lock = threading.RLock()
        self._queued = threading.Condition(self._lock)
        self._open: list[TwinMark] = []
        self._queue: list[Queued] = []
        if window_s:
            self.stats.note_window(window_s)

    def mark(self) -> TwinMark:
        with self._lock:
            mark = TwinMark(done=not self.computing)
            if self.computing:
                self._open.append(mark)
            return mark

    def open(self, start: TwinMark) -> TwinTrip:
        return TwinTrip(self, start)

    def ahead_s(self, began: float | None, now: float) -> float:
        return self.stats.window_s if began is None else max(0.0, began + self.stats.window_s - now)

    def aside_room(self) -> int:
        return 0 if self.aside_user is not None and not self.aside_user.is_copied else self.aside_bytes

    def clone_s(self, nbytes: int) -> float:
        return nbytes / self._clone_bytes_per_s

    def flush(self) -> None:
        """The script's stream waits for what was issued: the device gets there, however slow it is."""
        with self._lock:
            for queued in self._queue:
                if queued.batch is not None:
                    queued.batch.run()
                queued.mark.come()
            self._queue.clear()

    def catch_up(self) -> None:
        """The device has done all the script's work."""
        with self._lock:
            for mark in self._open:
                mark.come()
            self._open.clear()
            self._pump()

    def copy(self, count: int | None = None) -> None:
        """So many batches, or all from now on."""
        with self._lock:
            if count is None:
                self.copying = True
            else:
                self._run(count)
            self._pump()

    def enqueue(self, start: TwinMark, batch: HostBatch | None) -> TwinMark:
        with self._lock:
            queued = Queued(start, batch)
            self._queue.append(queued)
            self._queued.notify_all()
            if batch is not None:
                self.issued.append(batch.nbytes)
            self._pump()
            return queued.mark

    def await_queued(self) -> None:
        with self._queued:
            assert self._queued.wait_for(lambda: self._queue, LIMIT_S), "nothing was issued"

    def _pump(self) -> None:
        self._run(len(self._queue) if self.copying else 0)

    def _run(self, count: int) -> None:
        while self._queue and self._queue[0].start.done() and (count > 0 or self._queue[0].batch is None):
            queued = self._queue.pop(0)
            if queued.batch is not None:
                queued.batch.run()
                count -= 1
            queued.mark.come()


class TwinTrip:
    def __init__(self, lane: DeviceTwin, start: TwinMark) -> None:
        self._lane, self._start = lane, start
        self._copied_bytes = 0
        self._end: TwinMark | None = None

    @property
    def is_copied(self) -> bool:
        return self._end is not None and self._end.done()

    def set_aside(self, batches: list[HostBatch]) -> list[HostBatch]:
        self._lane.flush()
        self._lane.aside_user = self
        return [_cloned(batch) for batch in batches]

    def issue(self, batch: HostBatch) -> TwinMark:
        self._copied_bytes += batch.nbytes
        return self._lane.enqueue(self._start, batch)

    def close(self) -> TwinMark:
        self._end = self._lane.enqueue(self._start, None) if self._copied_bytes else TwinMark(done=True)
        return self._end

    def hold(self) -> None:
        self._lane.holds += 1

    def waited(self, seconds: float) -> None:
        """The host's time, not the device's."""

    def cost(self) -> CaptureCost | None:
        if self._end is None or not self._end.done():
            return None
        return CaptureCost(stall_s=0.0, copied_bytes=self._copied_bytes, copy_s=0.0)


def _cloned(batch: HostBatch) -> HostBatch:
    pairs = [(target, source.copy()) for target, source in batch.pairs]
    return HostBatch(pairs, (batch.tiny[0], [source.clone() for source in batch.tiny[1]]), batch.nbytes)
