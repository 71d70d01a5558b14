"""The file shows which steps it has, also with torn lines, killed, stopped or replaced writers, and moved files."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
from waiting import LIMIT_S, wait_until

from deadpool.journal import Entry, Jsonl, Run, jsonl

RUN = Run("aa", 0)


def entries(*steps: int) -> list[Entry]:
    return [Entry(step, 1.0 + step, json.dumps({"loss": step / 3})) for step in steps]


def steps(path: Path, rank: int = 0) -> list[int]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line["step"] for line in lines if line["rank"] == rank]


@pytest.fixture
def opened(tmp_path):
    made = []

    def make(path: Path | None = None, run: Run = RUN) -> Jsonl:
        sink = Jsonl(path or tmp_path / "folder" / "a.jsonl")
        sink.open(run)
        made.append(sink)
        return sink

    yield make
    for sink in made:
        sink.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "a.jsonl"


def test_lines_are_as_promised(opened, path):
    assert opened().write(entries(0, 1)) is None
    assert path.read_text().splitlines()[1] == (
        '{"run":"aa","rank":0,"step":1,"time":2.0,"values":{"loss": 0.3333333333333333}}'
    )


def test_what_is_there_is_skipped_by_whoever_comes(opened, path):
    opened().write(entries(0, 1, 2))
    opened().write(entries(1, 2, 3, 4))
    assert steps(path) == [0, 1, 2, 3, 4]


def test_two_that_write_in_turns_repeat_nothing(opened, path):
    one, other = opened(), opened()
    one.write(entries(0, 1))
    other.write(entries(0, 1, 2))
    one.write(entries(2, 3))
    other.write(entries(2, 3))
    assert steps(path) == [0, 1, 2, 3]


@pytest.mark.parametrize("cut", [1, 20, 70])
def test_torn_last_line_is_cut_off_and_written_again(opened, path, cut):
    opened().write(entries(0, 1, 2))
    os.truncate(path, path.stat().st_size - cut)
    opened().write(entries(2, 3))
    assert steps(path) == [0, 1, 2, 3]


def test_torn_only_line(opened, path):
    path.parent.mkdir()
    path.write_text('{"run":"aa","ra')
    opened().write(entries(0))
    assert steps(path) == [0]


def test_torn_line_of_another_while_this_one_is_open(opened, path):
    one = opened()
    one.write(entries(0))
    with path.open("a") as file:
        file.write('{"run":"aa","rank":0,"step":1,"ti')
    one.write(entries(1))
    assert steps(path) == [0, 1]


def test_other_ranks_and_other_jobs_in_the_file_do_not_count(opened, path):
    opened(run=Run("old", 0)).write(entries(0, 1, 2))
    mine, other = opened(), opened(run=Run("aa", 1))
    other.write(entries(0, 1))
    mine.write(entries(0))
    other.write(entries(2))
    mine.write(entries(1))
    assert steps(path, 0) == [0, 1, 2, 0, 1] and steps(path, 1) == [0, 1, 2]


def test_position_is_found_far_from_the_end(opened, path, monkeypatch):
    from deadpool.journal import jsonl

    monkeypatch.setattr(jsonl, "_BLOCK", 100)
    opened().write(entries(0, 1, 2))
    opened(run=Run("aa", 1)).write(entries(*range(50)))
    opened().write(entries(1, 2, 3))
    assert steps(path, 0) == [0, 1, 2, 3]


def test_failed_write_leaves_no_half_line(opened, path, monkeypatch):
    sink = opened()
    sink.write(entries(0))
    write = os.write

    def fails(fd, data):
        write(fd, bytes(data)[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", fails)
    with pytest.raises(OSError, match="No space"):
        sink.write(entries(1))
    monkeypatch.undo()
    sink.write(entries(1))
    assert steps(path) == [0, 1]


def test_file_that_was_moved_away_is_noticed(opened, path):
    sink = opened()
    sink.write(entries(0))
    path.rename(path.with_suffix(".old"))
    path.touch()
    with pytest.raises(FileNotFoundError, match="is another file now"):
        sink.write(entries(1))
    sink.open(RUN)
    sink.write(entries(1))
    assert steps(path) == [1]


def test_file_that_somebody_emptied_goes_on_where_it_was(opened, path):
    sink = opened()
    sink.write(entries(0, 1))
    os.truncate(path, 0)
    sink.write(entries(1, 2))
    assert steps(path) == [2]


def test_lock_that_another_keeps_is_an_error_and_not_a_wait_for_ever(opened, path, monkeypatch):
    monkeypatch.setattr(jsonl, "_TIMEOUT_S", 0.1)
    sink = opened()
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError, match="another process holds the lock"):
            sink.write(entries(0))
    sink.write(entries(0))
    assert steps(path) == [0]


def _write_for_ever(path: str, beginning: int) -> None:
    sink = Jsonl(path)
    sink.open(RUN)
    for step in range(beginning, 1_000_000):
        sink.write(entries(step))


def test_writers_killed_again_and_again(path):
    """Each writer continues some steps before the last line, like a process whose record is older than the file."""
    context = multiprocessing.get_context("fork")
    for _ in range(8):
        process = context.Process(target=_write_for_ever, args=(str(path), max(0, _lines(path) - 5)))
        process.start()
        target = _lines(path) + 3
        wait_until(lambda target=target: _lines(path) >= target, "new lines")
        process.kill()
        process.join()
        process.close()
    found = steps_of_whole_lines(path)
    assert len(found) > 20 and found == list(range(len(found)))


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def steps_of_whole_lines(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def test_zombie_that_was_stopped_before_it_wrote(path):
    """A stopped process wakes up after another process has written what it was about to write."""
    context = multiprocessing.get_context("fork")
    ready, go = path.with_suffix(".ready"), path.with_suffix(".go")

    def zombie() -> None:
        sink = Jsonl(path)
        sink.open(RUN)
        sink.write(entries(0, 1))
        ready.touch()
        wait_until(go.exists, "the word to go")
        sink.write(entries(2, 3))

    process = context.Process(target=zombie)
    process.start()
    wait_until(ready.exists, "the process")
    os.kill(process.pid, signal.SIGSTOP)
    successor = Jsonl(path)
    successor.open(RUN)
    successor.write(entries(1, 2, 3, 4))
    go.touch()
    os.kill(process.pid, signal.SIGCONT)
    process.join(LIMIT_S)
    assert process.exitcode == 0
    process.close()
    successor.write(entries(4, 5))
    successor.close()
    assert steps(path) == [0, 1, 2, 3, 4, 5]
