"""Hands final entries to the sinks, each sink at its own speed. Owns the sinks and the progress of each one.

A sink that raises is closed and opened again after a pause that grows: when it is opened, it reads which steps its
destination has. An entry counts as delivered once it is durable in all sinks. Only one thread at a time calls this.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from deadpool.journal.entry import Entry, Run, Sink, Undelivered

_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 30.0
_POLL_S = 0.1

OnFailure = Callable[[str, Exception], None]


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
