"""The journal of an unprotected job: a completed step is final at once, and its entry is written when the step ends."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from deadpool.host.notes import note
from deadpool.journal.delivery import Delivery
from deadpool.journal.entry import Run, Sink
from deadpool.journal.jsonl import default_sink
from deadpool.journal.step_values import StepValues, finished, new_run_id, ranges
from deadpool.journal.undelivered import Undelivered

_END_S = 30.0


class UnprotectedJournal:
    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._values = StepValues()
        self._undelivered = Undelivered(self._report_dropped)
        self._delivery: Delivery | None = None
        self._completed = 0

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        self._values.log(step, values)

    def log_to(self, sinks: Sequence[Sink]) -> None:
        self._values.log_to(sinks)

    def enter_step(self, number: int) -> None:
        self._values.enter_step(number)

    def leave_step(self, *, completed: bool) -> None:
        draft = self._values.leave_step()
        entry = finished(draft)
        if completed and draft is not None:
            self._completed = draft.step + 1
            if entry is not None:
                self._undelivered.add(entry)
            self._deliver()

    def close(self) -> None:
        """Delivers the last entries and closes the sinks; a sink that has failed is tried again for a while."""
        if self._delivery is None:
            return
        self._delivery.finish(self._completed, time.monotonic() + _END_S)
        self._delivery = None
        left = [entry.step for entry in self._undelivered.final(0, self._completed)]
        if left:
            self._report_dropped(left)

    def _deliver(self) -> None:
        if self._delivery is None and not self._undelivered.is_empty:
            sinks = self._values.sinks or (default_sink(self._rank),)
            self._delivery = Delivery(self._undelivered, Run(new_run_id(), self._rank), sinks, self._report_failed)
        if self._delivery is not None and self._undelivered.has_final(self._completed):
            self._delivery.deliver(self._completed)

    def _report_failed(self, sink: str, error: Exception) -> None:
        note(
            f"the journal cannot be written to {sink}: {type(error).__name__}: {error}; training continues, and "
            "entries wait for the next try"
        )

    def _report_dropped(self, steps: list[int]) -> None:
        note(f"journal entries of rank {self._rank} for steps {ranges(steps)} were dropped: not every sink has them")
