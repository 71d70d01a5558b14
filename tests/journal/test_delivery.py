"""Entries are delivered to each sink at its own speed, through failures and outages."""

from __future__ import annotations

import pytest

from deadpool.journal import Entry, Run, step_values
from deadpool.journal.entry import Undelivered
from deadpool.journal.step_values import Delivery

RUN = Run("aa", 0)


class Memory:
    """A sink with a destination that outlives it."""

    def __init__(self, there: list[int], *, lazy: bool = False) -> None:
        self.there, self.lazy, self.fails = there, lazy, ""
        self.opened = self.closed = 0
        self.buffer: list[int] = []

    def open(self, run: Run) -> None:
        self._fail_in("open")
        self.opened += 1
        self.buffer = []

    def write(self, entries) -> int | None:
        self._fail_in("write")
        known = (self.there + self.buffer)[-1:] or [-1]
        new = [entry.step for entry in entries if entry.step > known[0]]
        (self.buffer if self.lazy else self.there).extend(new)
        return self.buffer[0] if self.buffer else None

    def close(self) -> None:
        self.closed += 1
        self._fail_in("close")
        self.flush()

    def flush(self) -> None:
        self.there.extend(self.buffer)
        self.buffer = []

    def _fail_in(self, where: str) -> None:
        if self.fails == where:
            raise OSError(f"{where} failed")


class Bench:
    def __init__(self, *sinks: Memory, steps: int = 6) -> None:
        self.reported: list[str] = []
        self.waiting = Undelivered(lambda dropped: None)
        for step in range(steps):
            self.waiting.add(Entry(step, 0.0, "{}"))
        self.delivery = Delivery(self.waiting, RUN, sinks, lambda name, error: self.reported.append(str(error)))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(step_values, "_FIRST_PAUSE_S", 0.0)


def test_nothing_is_opened_before_something_is_final():
    sink = Memory([])
    bench = Bench(sink)
    bench.delivery.deliver(0)
    assert sink.opened == 0 and not bench.delivery.has_work(0) and bench.delivery.has_work(1)
    bench.delivery.deliver(3)
    assert sink.there == [0, 1, 2] and bench.waiting.delivered == 3


def test_one_sink_fails_and_the_other_goes_on():
    broken, sound = Memory([]), Memory([])
    bench = Bench(broken, sound)
    broken.fails = "write"
    bench.delivery.deliver(2)
    bench.delivery.deliver(4)
    assert sound.there == [0, 1, 2, 3] and broken.there == [] and bench.waiting.delivered == 0
    assert bench.reported == ["write failed"], "reported once"
    broken.fails = ""
    bench.delivery.deliver(5)
    assert broken.there == sound.there == [0, 1, 2, 3, 4] and bench.waiting.delivered == 5
    assert broken.opened == 3, "opened again each time, to see what is there"
    broken.fails = "write"
    bench.delivery.deliver(6)
    assert bench.reported == ["write failed"] * 2, "another outage"


def test_sink_that_cannot_be_opened_or_closed():
    sink = Memory([])
    bench = Bench(sink)
    sink.fails = "open"
    bench.delivery.deliver(2)
    sink.fails = ""
    bench.delivery.deliver(2)
    sink.fails = "close"
    bench.delivery.close()
    assert sink.there == [0, 1] and bench.reported == ["open failed", "close failed"]


def test_pauses_grow_and_a_failed_sink_is_left_alone_meanwhile(monkeypatch):
    monkeypatch.setattr(step_values, "_FIRST_PAUSE_S", 100.0)
    monkeypatch.setattr(step_values, "_LONGEST_PAUSE_S", 150.0)
    sink = Memory([])
    bench = Bench(sink)
    sink.fails = "write"
    bench.delivery.deliver(2)
    assert 90 < bench.delivery.pause_s() <= 100
    sink.fails = ""
    bench.delivery.deliver(2)
    assert sink.there == []


def test_what_a_lazy_sink_was_handed_counts_when_it_is_durable():
    sink = Memory([], lazy=True)
    bench = Bench(sink)
    bench.delivery.deliver(3)
    assert bench.waiting.delivered == 0 and bench.delivery.has_work(3) and not bench.delivery.is_behind(3)
    sink.flush()
    bench.delivery.deliver(4)
    assert bench.waiting.delivered == 3, "step 3 was handed over, and could be lost"
    bench.delivery.close()
    assert sink.there == [0, 1, 2, 3] and bench.waiting.delivered == 4


def test_lazy_sink_that_fails_gets_again_what_it_lost():
    there: list[int] = []
    sink = Memory(there, lazy=True)
    bench = Bench(sink)
    bench.delivery.deliver(3)
    sink.fails = "close"
    bench.delivery.close()
    assert there == [] and bench.waiting.delivered == 0
    sink.fails = ""
    bench.delivery.deliver(3)
    bench.delivery.close()
    assert there == [0, 1, 2]
