"""`job.log` with and without protection.

`StepValues` implements `job.log` and `job.log_to`, in a protected job and under torchrun alike. Owns the values of
the step in progress and the list of sinks. Only the script's thread may call it.

`UnprotectedJournal`: the journal of an unprotected job: a completed step is final at once, and its entry is written
when the step ends.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from deadpool.errors import ConfigError
from deadpool.host.notes import note
from deadpool.journal.delivery import Delivery
from deadpool.journal.entry import Entry, Run, Sink, StepDraft, Undelivered
from deadpool.journal.jsonl import default_sink

_METHODS = ("open", "write", "close")


class StepValues:
    def __init__(self) -> None:
        self.sinks: tuple[Sink, ...] = ()
        self._draft: StepDraft | None = None
        self._began = False

    def enter_step(self, number: int) -> None:
        """Begins a step without values, also if the step is done again."""
        self._draft, self._began = StepDraft(number), True

    def leave_step(self) -> StepDraft | None:
        """Ends the step: nothing can be logged in it any more."""
        draft, self._draft = self._draft, None
        return draft

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        if self._draft is None:
            raise ConfigError(
                f"job.log({step}, ...) was called outside of a step: call it inside the block of `with step:`. Logged "
                "values are saved with the state at the end of the block; later ones could be lost with their rank"
            )
        if step != self._draft.step:
            raise ConfigError(
                f"job.log({step}, ...) was called in step {self._draft.step}: values can be logged only in their own "
                "step. Pass the `step` of the loop, and log numbers of your own as values"
            )
        self._draft.add(values)

    def log_to(self, sinks: Sequence[Sink]) -> None:
        if self._began:
            raise ConfigError("job.log_to(...) was called after the first step: call it before the loop")
        for sink in sinks:
            missing = [name for name in _METHODS if not callable(getattr(sink, name, None))]
            if missing:
                raise ConfigError(
                    f"job.log_to({sink!r}): a sink needs the methods {', '.join(_METHODS)}; see deadpool.journal.Sink"
                )
        self.sinks += tuple(sinks)


def finished(draft: StepDraft | None) -> Entry | None:
    """Returns the entry of a step that ends now, or None if nothing was logged in it."""
    return draft.entry(time.time()) if draft is not None else None


def new_run_id() -> str:
    return secrets.token_hex(6)


def ranges(steps: Sequence[int]) -> str:
    """Returns the steps as text for people, for example `3-7, 12`."""
    found: list[list[int]] = []
    for step in sorted(steps):
        if found and step == found[-1][1] + 1:
            found[-1][1] = step
        else:
            found.append([step, step])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


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
