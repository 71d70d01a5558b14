"""Records the small collectives of a live rank, and replays them to a process that rehearses the rank alone.

A result is recorded when its work has been waited for; results of a batch are recorded when the batch has been. A
script that only reads the future of an asynchronous collective leaves nothing recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from deadpool.backend.interception import Interception
from deadpool.backend.rehearsing.null_group import CallbackWork
from deadpool.backend.rehearsing.recorded_collectives import Key, RecordedCollectives, copy_into, is_recordable

Find = Callable[[Key], tuple[bytes, ...] | None]


class CollectiveReplay:
    """Records, replays, or does nothing. Main thread only, but the collectives may come from any thread."""

    def __init__(self) -> None:
        self._interception = Interception()
        self._before_loop: tuple[RecordedCollectives, Counter[tuple[str, str]]] | None = None
        self.recorded = RecordedCollectives()
        self.is_recording = False

    def record(self) -> None:
        """Called before the first line of the script of a live rank."""
        self._start_over()
        self.is_recording = True
        self._interception.begin(self._record)

    def replay(self, find: Find) -> None:
        """Called before the first line of the script of a rehearsal: it is given the results that `find` returns."""
        self._start_over()
        self._interception.begin(_ReplayListener(find))

    def mark(self) -> None:
        """The loop begins: rewind() comes back to here."""
        self._before_loop = (self.recorded.copy(), self._interception.counts.copy())

    def pause(self) -> None:
        """The block of the first step is over. Whether the step counts is not known yet: rewind() records again."""
        self._interception.end()

    def rewind(self) -> None:
        """The first step was cut off, was only rehearsed, or did not count: it begins again."""
        if self._before_loop is not None:
            recorded, counts = self._before_loop
            self.recorded, self._interception.counts = recorded.copy(), counts.copy()
        if self.is_recording:
            self._interception.begin(self._record)

    def record_first_step(self, recorded: RecordedCollectives) -> None:
        """Called by a newcomer that was replayed until the mark. `recorded` is what the lost rank had recorded."""
        assert self._before_loop is not None
        self._before_loop = (recorded, self._before_loop[1])
        self.rewind()
        self.is_recording = True
        self._interception.begin(self._record)

    def end(self) -> None:
        self._interception.end()
        self.is_recording = False

    def _start_over(self) -> None:
        self.end()
        self.recorded, self._before_loop = RecordedCollectives(), None
        self._interception.counts.clear()

    def _record(self, key: Key, outputs: list[torch.Tensor], call: Callable[[], Any]) -> Any:
        work, recorded = call(), self.recorded
        if recorded.closed is not None or not is_recordable(outputs):
            return work

        def add() -> None:
            recorded.add(key, outputs)

        if self._interception.defer_to_batch(key, add):
            return work
        if work is None:  # torch has waited already
            add()
            return None
        return CallbackWork(work, add)


class _ReplayListener:
    def __init__(self, find: Find) -> None:
        self._find = find

    def __call__(self, key: Key, outputs: list[torch.Tensor], call: Callable[[], Any]) -> Any:
        work = call()  # that of a fake group: complete at once
        result = self._find(key) if is_recordable(outputs) else None
        if (result is None or not copy_into(outputs, result)) and key[0].startswith("recv"):
            for tensor in outputs:  # activations: zeros are valid input, with no NaN and no index out of range
                tensor.data.zero_()
        return work
