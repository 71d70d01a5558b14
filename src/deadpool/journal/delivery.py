"""Hands final entries to the sinks, each sink at its own speed. Owns the sinks and how far each of them has come.

A sink that raises is closed and opened again after a pause that grows: when it is opened it sees for itself what its
destination has. Only what is durable in all sinks counts as delivered. One thread at a time calls this.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from deadpool.journal.entry import Entry, Run, Sink
from deadpool.journal.undelivered import Undelivered

_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 30.0
_LOOK_S = 0.1

OnFailure = Callable[[str, Exception], None]


class Outlet:
    """One sink and how far it has come: `reached` is the first step that it may still lose, `handed` the first that it
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
        """They are all there is below `end`."""
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
        """Whether this is the first time since it last worked."""
        with contextlib.suppress(Exception):  # it has failed already
            self.close()
        self.handed = self.reached
        self.retry_at = now + min(_FIRST_PAUSE_S * 2**self._failures, _LONGEST_PAUSE_S)
        self._failures += 1
        return self._failures == 1

    def close(self) -> None:
        """With that, everything that it was handed is durable."""
        if self._is_open:
            self._is_open = False
            self.sink.close()
            self.reached = self.handed


class Delivery:
    def __init__(self, undelivered: Undelivered, run: Run, sinks: Sequence[Sink], on_failure: OnFailure) -> None:
        """`on_failure` is told once per outage which sink failed and how."""
        self._undelivered, self._run, self._on_failure = undelivered, run, on_failure
        self._outlets = [Outlet(sink, undelivered.delivered) for sink in sinks]

    def has_work(self, final: int) -> bool:
        """Some entry is final, and not known to be durable everywhere."""
        return self._undelivered.has_final(final)

    def is_behind(self, final: int) -> bool:
        """Some sink was not even given an entry that is final."""
        return any(self._undelivered.final(outlet.handed, final) for outlet in self._outlets)

    def pause_s(self) -> float:
        """Seconds until some sink may be tried; 0 if one has not failed."""
        now = time.monotonic()
        return min((max(0.0, outlet.retry_at - now) for outlet in self._outlets), default=0.0)

    def deliver(self, final: int) -> None:
        """Tries every sink whose pause is over."""
        for outlet in self._outlets:
            if outlet.retry_at <= time.monotonic():
                self._try(outlet, lambda outlet=outlet: self._hand_over(outlet, final))  # type: ignore[misc]
        self._undelivered.deliver(self._durable(final))

    def _hand_over(self, outlet: Outlet, final: int) -> None:
        outlet.deliver(*self._undelivered.due(outlet.reached, final), self._run)

    def _durable(self, final: int) -> int:
        return min((outlet.reached for outlet in self._outlets), default=final)

    def _try(self, outlet: Outlet, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # anything that a disk, a server or somebody's sink may raise: no step waits for it
            if outlet.failed(time.monotonic()):
                self._on_failure(outlet.name, error)

    def finish(self, final: int, deadline: float) -> None:
        """Delivers the last entries and closes the sinks. One that has failed has until `deadline` to come back, by
        time.monotonic()."""
        self.deliver(final)
        while self.is_behind(final) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            self.deliver(final)
        self.close()

    def close(self) -> None:
        for outlet in self._outlets:
            self._try(outlet, outlet.close)
        self._undelivered.deliver(self._durable(0))
