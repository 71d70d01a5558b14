"""The way of a value from `job.log` to the sinks.

`StepValues` implements `job.log` and `job.log_to`, in a protected job and under torchrun alike. It owns the values of
the step in progress and the list of sinks, and only the script's thread may call it. `UnprotectedJournal` is the
journal of an unprotected job: a completed step is final at once, and its entry is written when the step ends.

`Delivery` hands final entries to the sinks, each sink at its own speed, and owns the progress of each one. A sink that
raises is closed and opened again after a pause that grows: when it is opened, it reads which steps its destination has.
An entry counts as delivered once it is durable in all sinks. Only one thread at a time calls it.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deadpool.errors import ConfigError
from deadpool.host.notes import note
from deadpool.journal.entry import Entry, Run, Sink, StepDraft, Undelivered
from deadpool.journal.jsonl import default_sink

_METHODS = ("open", "write", "close")

_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 30.0
_POLL_S = 0.1

OnFailure = Callable[[str, Exception], None]


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


class SinkProgress:
    """One sink and its progress: `reached` is the first step that it may still lose, `handed` is the first step that it
    was not given since it was opened."""

    def __init__(self, sink: Sink, begin: int) -> None:
        self.sink = sink
        self.reached = self.handed = begin
        self.retry_at = 0.0  # by time.monotonic()
        self._is_open = False
        self._failures = 0

    @property
    def name(self) -> str:
        return f"{type(self.sink).__name__}({getattr(self.sink, 'place', '')})"

    def deliver(self, entries: Sequence[Entry], end: int, run: Run) -> None:
        """Writes `entries`, which are all entries below `end` that the sink may not have yet."""
        doubtful = None
        if entries:
            if not self._is_open:
                self.sink.open(run)
                self._is_open = True
            doubtful = self.sink.write(entries)
        self.handed = max(self.handed, end)
        self.reached = max(self.reached, end if doubtful is None else min(doubtful, end))
        self._failures = 0

    def failed(self, now: float) -> bool:
        """Closes the sink until its next try. Returns whether this is the first failure since it last worked."""
        with contextlib.suppress(Exception):  # its failure is reported already
            self.close()
        self.handed = self.reached
        self.retry_at = now + min(_FIRST_PAUSE_S * 2**self._failures, _LONGEST_PAUSE_S)
        self._failures += 1
        return self._failures == 1

    def close(self) -> None:
        """Closes the sink; everything that it was handed is durable afterwards."""
        if self._is_open:
            self._is_open = False
            self.sink.close()
            self.reached = self.handed


class Delivery:
    """Delivers the entries of one rank to its sinks."""

    def __init__(self, undelivered: Undelivered, run: Run, sinks: Sequence[Sink], on_failure: OnFailure) -> None:
        """`on_failure` is called once per outage, with the name of the sink and its error."""
        self._undelivered, self._run, self._on_failure = undelivered, run, on_failure
        self._sinks = [SinkProgress(sink, undelivered.delivered) for sink in sinks]

    def has_work(self, final: int) -> bool:
        """Returns whether some final entry is not known to be durable in every sink."""
        return self._undelivered.has_final(final)

    def is_behind(self, final: int) -> bool:
        """Returns whether some sink was not given a final entry yet."""
        return any(self._undelivered.final(each.handed, final) for each in self._sinks)

    def pause_s(self) -> float:
        """Returns the seconds until the first sink may be tried again; 0 if one of them has not failed."""
        now = time.monotonic()
        return min((max(0.0, each.retry_at - now) for each in self._sinks), default=0.0)

    def deliver(self, final: int) -> None:
        """Hands final entries to every sink whose pause is over."""
        for each in self._sinks:
            if each.retry_at <= time.monotonic():
                self._try(each, lambda each=each: self._hand_over(each, final))  # type: ignore[misc]
        self._undelivered.deliver(self._durable(final))

    def _hand_over(self, each: SinkProgress, final: int) -> None:
        each.deliver(*self._undelivered.due(each.reached, final), self._run)

    def _durable(self, final: int) -> int:
        return min((each.reached for each in self._sinks), default=final)

    def _try(self, each: SinkProgress, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # a disk, a server or a user's sink may raise anything, and no step waits for it
            if each.failed(time.monotonic()):
                self._on_failure(each.name, error)

    def finish(self, final: int, deadline: float) -> None:
        """Delivers the last entries and closes the sinks. A sink that has failed is tried again until `deadline`, which
        is a time of time.monotonic()."""
        self.deliver(final)
        while self.is_behind(final) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            self.deliver(final)
        self.close()

    def close(self) -> None:
        for each in self._sinks:
            self._try(each, each.close)
        self._undelivered.deliver(self._durable(0))
