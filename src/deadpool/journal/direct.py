"""The journal where nothing is protected: a completed step is final, and is written when it ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from deadpool.journal.book import Book, finished, new_run_id, ranges
from deadpool.journal.delivery import Delivery
from deadpool.journal.entry import Run, Sink
from deadpool.journal.jsonl import default_sink
from deadpool.journal.waiting import Waiting

_END_S = 30.0
_LOOK_S = 0.1


class DirectJournal:
    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._book = Book()
        self._waiting = Waiting(self._tell_dropped)
        self._delivery: Delivery | None = None
        self._completed = 0

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        self._book.log(step, values)

    def log_to(self, sinks: Sequence[Sink]) -> None:
        self._book.log_to(sinks)

    def enter_step(self, number: int) -> None:
        self._book.enter_step(number)

    def leave_step(self, *, completed: bool) -> None:
        draft = self._book.leave_step()
        entry = finished(draft)
        if completed and draft is not None:
            self._completed = draft.step + 1
            if entry is not None:
                self._waiting.add(entry)
            self._deliver()

    def close(self) -> None:
        """A sink that has failed gets some time to come back."""
        if self._delivery is None:
            return
        deadline = time.monotonic() + _END_S
        while self._delivery.is_behind(self._completed) and time.monotonic() < deadline:
            time.sleep(min(self._delivery.pause_s(), _LOOK_S))
            self._delivery.deliver(self._completed)
        self._delivery.close()
        self._delivery = None
        left = [entry.step for entry in self._waiting.final(0, self._completed)]
        if left:
            self._tell_dropped(left)

    def _deliver(self) -> None:
        if self._delivery is None and not self._waiting.is_empty:
            sinks = self._book.sinks or (default_sink(self._rank),)
            self._delivery = Delivery(self._waiting, Run(new_run_id(), self._rank), sinks, self._tell_failed)
        if self._delivery is not None and self._waiting.has_final(self._completed):
            self._delivery.deliver(self._completed)

    def _tell_failed(self, sink: str, error: Exception) -> None:
        _say(
            f"the journal cannot be written to {sink}: {type(error).__name__}: {error}; training goes on, entries wait"
        )

    def _tell_dropped(self, steps: list[int]) -> None:
        _say(f"journal entries of rank {self._rank}, step {ranges(steps)}, were given up: not every sink has them")


def _say(text: str) -> None:
    print(f"deadpool: {text}", file=sys.stderr, flush=True)
