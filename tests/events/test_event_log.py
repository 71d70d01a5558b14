"""A job's log outlives its disk: what cannot be written waits in memory, whole and in order."""

from __future__ import annotations

import os
import threading
from contextlib import closing

import pytest
from small_disk import small_disk
from waiting import wait_until

from deadpool.events import log as event_log
from deadpool.events.event import read_events
from deadpool.events.log import EventLog


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        yield disk


def numbers(path) -> list[int]:
    return [record["number"] for record in read_events(path)]


def write_some(log: EventLog, numbers: range) -> None:
    for number in numbers:
        log.write({"t": float(number), "what": "x", "number": number, "text": "y" * 100})


def test_nothing_is_lost_while_the_disk_is_full(disk):
    path = disk.path / "events.jsonl"
    with closing(EventLog(path)) as log:
        log.start()
        write_some(log, range(10))
        wait_until(lambda: path.exists() and len(numbers(path)) == 10, "ten records")
        disk.fill()
        write_some(log, range(10, 500))
        trouble = wait_until(log.trouble, "trouble")
        assert trouble.reason == "No space left on device"
        assert trouble.dropped == 0 and trouble.waiting > 0
        disk.empty()
        wait_until(lambda: log.trouble() is None, "the disk to take it")
        assert numbers(path) == list(range(500))


def test_line_that_a_killed_process_has_torn_costs_no_line_of_the_next_one(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"t": 1.0, "what": "x", "number": 1}\n{"t": 2.0, "wha')
    with closing(EventLog(path)) as log:
        log.start()
        write_some(log, range(3, 5))
    assert numbers(path) == [1, 3, 4]


def test_line_that_was_torn_by_a_full_disk_is_written_again_as_a_whole(disk):
    path = disk.path / "events.jsonl"
    with closing(EventLog(path)) as log:
        log.start()
        write_some(log, range(5000))  # more than fits: the last one that fits is cut somewhere
        wait_until(log.trouble, "trouble")
        path.write_bytes(b"")  # room, as rotation makes it
        wait_until(lambda: log.trouble() is None or path.stat().st_size > 200_000, "the disk to take more")
    read = numbers(path)
    assert read == list(range(read[0], read[0] + len(read))), "whole lines, none twice and none left out"


def test_folder_that_is_gone_and_comes_back(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with closing(EventLog(folder / "events.jsonl")) as log:
        log.start()
        write_some(log, range(1))
        wait_until(lambda: numbers(folder / "events.jsonl") == [0], "the first record")
        folder.rename(tmp_path / "elsewhere")
        write_some(log, range(1, 3))
        assert wait_until(log.trouble, "trouble").reason == "No such file or directory"
        folder.mkdir()
        wait_until(lambda: log.trouble() is None, "the folder to be used")
        assert numbers(folder / "events.jsonl") == [1, 2]


def test_log_that_begins_on_a_disk_that_is_read_only(disk):
    """A coordinator that takes over then leads all the same."""
    path = disk.path / "events.jsonl"
    disk.make_read_only()
    with closing(EventLog(path)) as log:
        log.start()
        assert wait_until(log.trouble, "trouble").reason == "Read-only file system"
        write_some(log, range(10))
        disk.make_writable()
        wait_until(lambda: log.trouble() is None, "the disk to take it")
        assert numbers(path) == list(range(10))


def test_log_that_begins_on_a_disk_that_does_not_answer(tmp_path, monkeypatch):
    answers, real = threading.Event(), event_log.owner_only_opener
    monkeypatch.setattr(event_log, "SLOW_S", 0.05)
    monkeypatch.setattr(event_log, "owner_only_opener", lambda path, flags: answers.wait() and real(path, flags))
    with closing(EventLog(tmp_path / "events.jsonl")) as log:
        log.start()
        write_some(log, range(10))
        assert wait_until(log.trouble, "trouble").waiting == 10
        answers.set()
        wait_until(lambda: log.trouble() is None, "an answer")
    assert numbers(tmp_path / "events.jsonl") == list(range(10))


def test_memory_is_bounded_and_what_was_dropped_is_counted(disk, monkeypatch):
    monkeypatch.setattr(event_log, "WAITING_BYTES", 20_000)
    path = disk.path / "events.jsonl"
    with closing(EventLog(path)) as log:
        log.start()
        disk.fill()
        write_some(log, range(1000))
        trouble = wait_until(lambda: (t := log.trouble()) and t.waiting + t.dropped == 1000 and t, "trouble")
        assert trouble.waiting < 200
        disk.empty()
        wait_until(lambda: log.trouble() is None, "the disk to take it")
        assert numbers(path)[-1] == 999 and len(numbers(path)) == trouble.waiting


def test_disk_that_does_not_answer_holds_nobody_up(tmp_path, monkeypatch):
    answers, real = threading.Event(), os.write
    monkeypatch.setattr(event_log, "SLOW_S", 0.05)

    def slow(descriptor, data):
        answers.wait()
        return real(descriptor, data)

    monkeypatch.setattr(event_log.os, "write", slow)
    with closing(EventLog(tmp_path / "events.jsonl")) as log:
        log.start()
        write_some(log, range(100))
        assert "longer" in wait_until(log.trouble, "trouble").reason
        answers.set()
        wait_until(lambda: log.trouble() is None, "an answer")
    assert numbers(tmp_path / "events.jsonl") == list(range(100))


def test_log_on_a_dead_disk_can_be_closed(disk):
    log = EventLog(disk.path / "events.jsonl")
    log.start()
    disk.fill()
    write_some(log, range(1000))
    wait_until(log.trouble, "trouble")
    assert log.waiting > 0
    assert log.close() > 0, "it says what is lost"
    assert not any(each.name == "deadpool-events" for each in threading.enumerate())
