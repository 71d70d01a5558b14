"""Calls that wait for a disk: in their order, none ends the thread, and memory is bounded."""

from __future__ import annotations

import threading
from contextlib import closing

from waiting import wait_until

from deadpool.control import console
from deadpool.control.console import DiskThread


def fail() -> None:
    raise ValueError("a bug, or a file system with errors of its own")


def test_call_that_raises_is_counted_and_the_next_one_made():
    made: list[int] = []
    with closing(DiskThread("test-disk")) as disk:
        disk.start()
        disk.do(fail)
        disk.do(lambda: made.append(1))
    assert (made, disk.left_out) == ([1], 1)


def test_disk_that_does_not_answer_costs_lines_and_no_more_memory_than_allowed(monkeypatch):
    monkeypatch.setattr(console, "_MOST_BYTES", 100)
    monkeypatch.setattr(console, "_BYTES_OF_A_CALL", 0)
    answers, made = threading.Event(), []
    with closing(DiskThread("test-disk")) as disk:
        disk.start()
        disk.do(lambda: answers.wait() and None)
        wait_until(lambda: disk.busy_s() > 0, "the call")
        for number in range(20):
            disk.do(lambda number=number: made.append(number), 10)
        disk.do(lambda: made.append("end"))  # keeps no bytes, so it is always taken
        assert (disk.left_out, disk.waiting) == (10, 11)
        answers.set()
    assert made == [*range(10), "end"]
