"""The lane of one CUDA device: it copies on side streams, beside the script's own work. Nothing here blocks the host
except waiting for a mark, which sleeps without the GIL.

A script that reads from the device meanwhile, a loss for example, must not wait until all is copied (7.5 ms for 400 MB
on an H200). A copy engine serves one stream until it has nothing to do there: so two streams take turns, each waiting
for the other, and what the script asks for comes between two turns. A script that waits for the whole device (timers
do) waits for all that was enqueued: so only two batches are, until the optimizer is reached.

What is copied is planned once, as batches (cuda_batches.py).

What cannot be copied before the optimizer may be set aside (cuda.py): it is cloned on the script's own stream,
right before the optimizer, and copied from there while the next steps run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from deadpool.errors import DeviceError
from deadpool.snapshot.copying.copy_stats import CaptureCost, CopyStats, memory_bytes_per_s
from deadpool.snapshot.copying.cuda import Addresses, Aside, aside_bytes, place_clones, runtime
from deadpool.snapshot.copying.cuda_batches import CudaBatch, cut_batches, fill, gathered
from deadpool.snapshot.copying.lanes import COMPLETE, LaneCopy, Mark, MoveBatch
from deadpool.snapshot.copying.moves import Move, Moves, TensorRun, cut_move

BATCH_BYTES = (64 << 20, 256 << 20)
"""The least and the largest size of a batch. The thread that enqueues batches needs the GIL for each."""

_USUAL_BATCHES = 16

TURN_BYTES = 32 << 20
"""The least size of a turn. On an H200 a read waits for 0.5 ms then, and the copy takes 1 % longer than in one piece
(16 MB: 0.3 ms, 3 %). In a large copy it is larger: the host can enqueue only so many calls ahead of the device."""

_MOST_TURNS = 128

_POOLED_EVENTS = 64


class CudaMark:
    """A mark as a CUDA event. When the mark is deleted its event returns to the pool and may be recorded again; streams
    that were told to wait for it before still wait for the old record."""

    def __init__(self, event: torch.cuda.Event, pool: list[torch.cuda.Event]) -> None:
        self.event, self._pool = event, pool

    def __del__(self) -> None:
        if len(self._pool) < _POOLED_EVENTS:
            self._pool.append(self.event)

    def done(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.event.synchronize()  # type: ignore[no-untyped-call]


class CudaLane:
    def __init__(self, device: torch.device, staging_limit_bytes: int, aside_limit_bytes: int = 0) -> None:
        self.device, self.stats = device, CopyStats()
        self.memory_bytes_per_s = memory_bytes_per_s(torch.cuda.get_device_properties(device))
        self._limit_bytes = staging_limit_bytes
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._other_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._staging: dict[tuple[int, ...], Tensor] = {}
        self._events: list[torch.cuda.Event] = []
        self._clone_memory = Aside(device, aside_limit_bytes)
        self._aside_user: CudaLaneCopy | None = None

    @property
    def device_bytes(self) -> int:
        return self._staging_bytes + self._clone_memory.nbytes

    @property
    def _staging_bytes(self) -> int:
        return sum(each.nbytes for each in self._staging.values())

    # --- marks -------------------------------------------------------------------------------------------------------

    def mark(self) -> Mark:
        return self.record(torch.cuda.current_stream(self.device))

    def record(self, stream: torch.cuda.Stream) -> CudaMark:
        event = self._events.pop() if self._events else _new_event()
        event.record(stream)
        return CudaMark(event, self._events)

    # --- captures ----------------------------------------------------------------------------------------------------

    def plan(self, moves: Moves) -> list[MoveBatch]:
        single, gathers = list(moves.single), []
        for run in moves.runs:
            staging = self._stage(run)
            if staging is None:
                single.extend(run.moves)
            else:
                gathers.append(gathered(run, staging))
                single.append(Move(run.stored, staging))
        nbytes = sum(move.nbytes for move in single)
        least, most = BATCH_BYTES
        batch_bytes = min(most, max(least, nbytes // _USUAL_BATCHES))
        turn_bytes = min(batch_bytes, max(TURN_BYTES, nbytes // _MOST_TURNS))
        cut = [part for move in single for part in cut_move(move, turn_bytes)]
        return list(cut_batches(cut, gathers, batch_bytes, turn_bytes))

    def open(self, start: Mark) -> LaneCopy:
        return CudaLaneCopy(self, self._stream, start)

    def ahead_s(self, began: float | None, now: float) -> float:
        """The copy begins at the boundary, and the optimizer follows one window later."""
        return self.stats.window_s if began is None else max(0.0, began + self.stats.window_s - now)

    def store(self, batch: CudaBatch) -> None:
        """Enqueues the batch on the side streams, from any thread. What follows on the first one follows all of it."""
        with self._aside():
            for gather in batch.gathers:
                fill(gather.staged, gather.live, gather.odd)
            self._take_turns(batch.turns)
            for stored, live in batch.strided:
                stored.copy_(live, non_blocking=True)

    def _take_turns(self, turns: list[Addresses]) -> None:
        """Each turn waits for the one before it, which was on the other stream."""
        stream, other = self._stream, self._other_stream
        for index, addresses in enumerate(turns):
            if index > 0:
                stream, other = other, stream
                stream.wait_stream(other)  # type: ignore[no-untyped-call]
            _issue(addresses, stream, to_host=True)
        if stream is not self._stream:
            self._stream.wait_stream(stream)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream), torch.no_grad():
            yield

    def _stage(self, run: TensorRun) -> Tensor | None:
        """Returns the staging buffer of these tensors, or None if it would exceed the limit. All slots share it,
        because their copies follow one another on one stream."""
        tensors = tuple(move.live.data_ptr() for move in run.moves)
        if tensors not in self._staging:
            if self._staging_bytes + run.nbytes > self._limit_bytes:
                return None
            with torch.cuda.stream(self._stream):  # only this stream uses its memory
                first = run.moves[0].live
                self._staging[tensors] = torch.empty(run.stored.size, dtype=first.dtype, device=first.device)
        return self._staging[tensors]

    def release(self) -> None:
        """Frees the staging buffers: other tensors will be copied from now on."""
        self._staging.clear()
        self._clone_memory.release()

    # --- what is set aside -------------------------------------------------------------------------------------------

    def aside_room(self) -> int:
        return 0 if self._aside_user is not None and not self._aside_user.is_copied else self._clone_memory.room()

    def clone_s(self, nbytes: int) -> float:
        """Every byte is read and written."""
        return self.stats.clone_s(nbytes, self.memory_bytes_per_s / 2)

    def clone(self, batches: list[CudaBatch], user: CudaLaneCopy) -> list[CudaBatch]:
        """Enqueues clones of the batches on the script's stream. Returns the batches that copy these."""
        sizes = [aside_bytes(batch.turns, batch.strided) for batch in batches]
        memory, start = self._clone_memory.take(sum(sizes)), 0
        self._aside_user = user
        found, stream = [], torch.cuda.current_stream(self.device)
        for batch, size in zip(batches, sizes, strict=True):
            clones = place_clones(batch.turns, batch.strided, memory, start)
            start += size
            for addresses in clones.clone:
                _issue(addresses, stream, to_host=True)
            with torch.no_grad():
                for clone, live in clones.strided:
                    clone.copy_(live, non_blocking=True)
            found.append(CudaBatch([], clones.store, [], batch.nbytes, clones))
        return found

    # --- restores ----------------------------------------------------------------------------------------------------

    def load(self, moves: Moves) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self.device))  # type: ignore[no-untyped-call]
        batches = [batch for batch in self.plan(moves) if isinstance(batch, CudaBatch)]
        with self._aside():
            for batch in batches:
                for addresses in batch.turns:
                    _issue(addresses, self._stream, to_host=False)
                for stored, live in batch.strided:
                    live.copy_(stored, non_blocking=True)
            for gather in (each for batch in batches for each in batch.gathers):
                fill(gather.live, gather.staged, [(live, staged) for staged, live in gather.odd])
        torch.cuda.current_stream(self.device).wait_stream(self._stream)  # type: ignore[no-untyped-call]

    def drain(self) -> None:
        """Waits for a mark first, so that trainer/recovery/unwinding.py sees this thread sleep in torch."""
        for stream in (torch.cuda.current_stream(self.device), self._stream):
            self.record(stream).wait()
        torch.cuda.synchronize(self.device)


class CudaLaneCopy:
    def __init__(self, lane: CudaLane, stream: torch.cuda.Stream, start: Mark) -> None:
        assert isinstance(start, CudaMark)
        self._lane, self._stream, self._boundary = lane, stream, start
        self._closed = False
        self._begin: CudaMark | None = None
        self._end: CudaMark | None = None
        self._reached: CudaMark | None = None
        self._released: CudaMark | None = None
        self._held: set[int] = set()
        self._copied_bytes = 0
        self._aside: SetAside | None = None
        self._cost: CaptureCost | None = None

    @property
    def is_copied(self) -> bool:
        """Returns whether nothing more will be read, neither from live memory nor from clones."""
        return self._closed and (self._end is None or self._end.done())

    def issue(self, batch: MoveBatch) -> Mark:
        assert isinstance(batch, CudaBatch)
        if self._begin is None:
            self._stream.wait_event(self._boundary.event)
            self._begin = self._lane.record(self._stream)
        self._lane.store(batch)
        self._copied_bytes += batch.nbytes
        return self._lane.record(self._stream)

    def set_aside(self, batches: list[MoveBatch]) -> list[MoveBatch]:
        """The script's stream waits for what was issued, so that its copies need no clones, then it clones the rest."""
        stream = torch.cuda.current_stream(self._lane.device)
        self._held.add(stream.cuda_stream)
        self._reached = self._lane.record(stream)
        live_end = self._lane.record(self._stream)
        stream.wait_event(self._boundary.event)
        stream.wait_event(live_end.event)
        began = self._lane.record(stream)
        rest = [batch for batch in batches if isinstance(batch, CudaBatch)]
        clones = self._lane.clone(rest, self)
        self._released = self._lane.record(stream)
        self._stream.wait_event(self._released.event)
        nbytes = sum(batch.nbytes for batch in rest)
        self._aside = SetAside(live_bytes=self._copied_bytes, live_end=live_end, began=began, nbytes=nbytes)
        return list(clones)

    def close(self) -> Mark:
        self._closed = True
        if self._begin is None:
            return COMPLETE
        self._end = self._lane.record(self._stream)
        return self._end

    def hold(self) -> None:
        """Records a mark before and after the stream's wait, so that the stall can be measured between them."""
        stream = torch.cuda.current_stream(self._lane.device)
        if stream.cuda_stream in self._held:
            return
        self._held.add(stream.cuda_stream)
        reached = self._lane.record(stream)
        awaited = self._end if self._aside is None else self._released
        if awaited is not None:
            stream.wait_event(awaited.event)
        if self._reached is None:
            self._reached, self._released = reached, self._lane.record(stream)

    def waited(self, seconds: float) -> None:
        """Ignores the host's time: the stall is measured on the device."""

    def cost(self) -> CaptureCost | None:
        if self._cost is None and self._is_over():
            self._cost = self._read()
        return self._cost

    def _is_over(self) -> bool:
        """What was set aside is still copied when the optimizer has gone on."""
        released = self._released is not None and self._released.done()
        return released and (self._aside is None or self.is_copied)

    def _read(self) -> CaptureCost:
        assert self._reached is not None and self._released is not None
        window_s = _between_s(self._boundary, self._reached)
        self._lane.stats.note_window(window_s)
        copy_s = 0.0
        if self._begin is not None and self._end is not None:
            copy_s = _between_s(self._begin, self._end)
            self._note_speeds(copy_s)
        stall_s = _between_s(self._reached, self._released) if self._end is not None else 0.0
        return CaptureCost(stall_s=stall_s, copied_bytes=self._copied_bytes, copy_s=copy_s)

    def _note_speeds(self, copy_s: float) -> None:
        """A copy that was set aside may have stood still until the device came to the clones: only what it copied
        before tells its speed."""
        stats, aside = self._lane.stats, self._aside
        if aside is None:
            stats.note_copy(self._copied_bytes, copy_s)
            return
        assert self._begin is not None and self._released is not None
        stats.note_copy(aside.live_bytes, _between_s(self._begin, aside.live_end))
        stats.note_clone(aside.nbytes, _between_s(aside.began, self._released))


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """The part of a copy that was set aside, and when the part before it was copied."""

    live_bytes: int
    live_end: CudaMark
    began: CudaMark
    nbytes: int


def _new_event() -> torch.cuda.Event:
    """Makes a blocking event: a thread that waits for it sleeps, instead of taking a core from the script."""
    return torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]


def _between_s(first: CudaMark, second: CudaMark) -> float:
    return float(first.event.elapsed_time(second.event)) / 1e3


def _issue(addresses: Addresses, stream: torch.cuda.Stream, *, to_host: bool) -> None:
    """Issues copies. All copies are issued here, so that one place checks for the runtime."""
    if not len(addresses):
        return
    found = runtime()
    if found is None:
        raise DeviceError("the CUDA runtime that torch uses was not found in this process")
    found.issue(addresses, stream.cuda_stream, to_host=to_host)
