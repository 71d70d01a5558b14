"""Records a live rank's recording book, and recordings a process that rehearses the rank alone.

A result is recorded when its work was waited for; that of a batch when the batch was. Whoever only looks at the future
of an asynchronous collective is not recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from deadpool.backend.interception import Interception
from deadpool.backend.noted_work import NotedWork
from deadpool.backend.recorded_collectives import Key, RecordedCollectives, can_be_kept, fill

Find = Callable[[Key], tuple[bytes, ...] | None]


class CollectiveReplay:
    """Records, recordings, or does nothing. Main thread, except that collectives may come from any."""

    def __init__(self) -> None:
        self._interception = Interception()
        self._before_loop: tuple[RecordedCollectives, Counter[tuple[str, str]]] | None = None
        self.book = RecordedCollectives()
        self.is_recording = False

    def record(self) -> None:
        """From the first line of the script."""
        self._start_over()
        self.is_recording = True
        self._interception.begin(self._listen)

    def recording(self, find: Find) -> None:
        """From the first line of the script, as one who rehearses it: what `find` knows is delivered."""
        self._start_over()
        self._interception.begin(_RecordingSchedule(find))

    def mark(self) -> None:
        """The loop begins."""
        self._before_loop = (self.book.copy(), self._interception.counts.copy())

    def pause(self) -> None:
        """The first step is over. Whether it counts is not known yet: after a rewind recording goes on."""
        self._interception.end()

    def rewind(self) -> None:
        """The first step was cut off, or was only rehearsed, or did not count: it begins anew."""
        if self._before_loop is not None:
            book, counts = self._before_loop
            self.book, self._interception.counts = book.copy(), counts.copy()
        if self.is_recording:
            self._interception.begin(self._listen)

    def record_first_step(self, book: RecordedCollectives) -> None:
        """From the mark on, by one who was replayed until there: `book` is what the lost rank had recorded."""
        assert self._before_loop is not None
        self._before_loop = (book, self._before_loop[1])
        self.rewind()
        self.is_recording = True
        self._interception.begin(self._listen)

    def end(self) -> None:
        self._interception.end()
        self.is_recording = False

    def _start_over(self) -> None:
        self.end()
        self.book, self._before_loop = RecordedCollectives(), None
        self._interception.counts.clear()

    def _listen(self, key: Key, outputs: list[torch.Tensor], call: Callable[[], Any]) -> Any:
        work, book = call(), self.book
        if book.closed is not None or not can_be_kept(outputs):
            return work

        def note() -> None:
            book.add(key, outputs)

        if self._interception.put_off(key, note):
            return work
        if work is None:  # torch has waited already
            note()
            return None
        return NotedWork(work, note)


class _RecordingSchedule:
    def __init__(self, find: Find) -> None:
        self._find = find

    def __call__(self, key: Key, outputs: list[torch.Tensor], call: Callable[[], Any]) -> Any:
        work = call()  # a fake one: complete at once
        result = self._find(key) if can_be_kept(outputs) else None
        if (result is None or not fill(outputs, result)) and key[0].startswith("recv"):
            for tensor in outputs:  # activations: zeros are as good as any, and no NaN, no index out of range
                tensor.data.zero_()
        return work
