"""Logs of trainers: bounded, and nothing lost around a fault."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from small_disk import small_disk

from deadpool.control.launch.log_search import excerpt, holders
from deadpool.control.trainers import log as trainer_log
from deadpool.control.trainers.log import KEPT_FAULTS, KEPT_FILES, TrainerLog
from deadpool.errors import ConfigError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def make_log(tmp_path):
    made = []

    def make(name="n1.0", file_bytes=100, clock=None) -> TrainerLog:
        made.append(TrainerLog(tmp_path, name, file_bytes=file_bytes, clock=clock or Clock()))
        return made[-1]

    yield make
    for log in made:
        log.close()


def text_of(folder: Path, name: str = "n1.0") -> str:
    paths = [folder / f"{name}.log.{number}" for number in range(KEPT_FILES, 0, -1)] + [folder / f"{name}.log"]
    return "".join(path.read_text() for path in paths if path.exists())


def test_size_is_bounded_and_no_line_is_split_or_lost_in_between(tmp_path, make_log):
    log = make_log()
    for number in range(1000):
        log.write(f"line {number:04}")
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= (KEPT_FILES + 1) * 100
    kept = text_of(tmp_path).splitlines()
    assert kept == [f"line {number:04}" for number in range(1000 - len(kept), 1000)] and len(kept) >= 40


def test_line_longer_than_a_file_is_written_whole(tmp_path, make_log):
    log = make_log()
    log.write("a")
    log.write("b" * 500)
    log.write("c")
    assert text_of(tmp_path).splitlines() == ["a", "b" * 500, "c"]


def test_lines_around_a_fault_stay_when_rotation_has_dropped_them(tmp_path, make_log):
    log = make_log()
    for number in range(30):
        log.write(f"before {number:04}")
    log.fault("fault-1")
    for number in range(3000):
        log.write(f"after {number:04}")
    assert "before" not in text_of(tmp_path)
    found = excerpt(tmp_path, "n1.0", "fault-1", lines=3)
    assert found.at_mark
    assert [line for line in found.lines if not line.startswith("[")][:3] == [f"before {n:04}" for n in (27, 28, 29)]
    assert "after 0000" in "".join(path.read_text() for path in (tmp_path / "faults" / "fault-1").iterdir())


def test_files_kept_for_faults_are_bounded(tmp_path, make_log):
    clock = Clock()
    log = make_log(clock=clock)
    for number in range(50):
        log.fault(f"fault-{number}")
        clock.now += 1000.0
        for line in range(40):
            log.write(f"line {line:04}")
    assert len(list((tmp_path / "faults").iterdir())) == KEPT_FAULTS
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) <= 3 * KEPT_FAULTS + KEPT_FILES + 1


def make_unbounded(folder: Path, clock: Clock) -> TrainerLog:
    return TrainerLog(folder, "n1.0", file_bytes=0, clock=clock)


def test_lines_wait_in_memory_while_the_disk_is_full(tmp_path):
    clock = Clock()
    with (
        small_disk(tmp_path / "disk") as disk,
        closing(TrainerLog(disk.path, "n1.0", file_bytes=0, clock=clock)) as log,
    ):
        log.write("before")
        disk.fill()
        for number in range(1000):
            log.write(f"line {number}")
        log.fault("fault-1")
        trouble = log.trouble()
        assert trouble is not None and trouble.reason == "No space left on device" and trouble.dropped == 0
        disk.empty()
        log.flush()
        assert log.trouble() is not None, "after a failure it is tried only once a second"
        clock.now += 2.0
        log.flush()
        assert log.trouble() is None
        assert text_of(disk.path).splitlines()[:-1] == ["before", *(f"line {number}" for number in range(1000))]


def test_folder_that_is_gone_is_used_when_it_is_back(tmp_path):
    clock = Clock()
    log = TrainerLog(tmp_path / "gone", "n1.0", file_bytes=10, clock=clock)
    log.write("first")
    log.fault("fault-1")
    (tmp_path / "gone").mkdir(exist_ok=True)
    clock.now += 2.0
    log.write("second")
    log.close()
    assert text_of(tmp_path / "gone").splitlines()[0] == "first" and log.trouble() is None


def test_memory_for_lines_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_log, "WAITING_BYTES", 100)
    log = TrainerLog(tmp_path / "gone", "n1.0", file_bytes=0)
    for number in range(50):
        log.write(f"line {number:04}")
    assert log.trouble() == ("No such file or directory", 10, 40)
    log.close()


def test_folder_without_links_costs_only_what_rotation_drops(tmp_path, make_log, monkeypatch):
    def refuse(*_):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    log = make_log()
    log.write("before")
    log.fault("fault-1")
    assert "before" in excerpt(tmp_path, "n1.0", "fault-1", lines=5).lines


def test_logs_are_private(tmp_path, make_log):
    make_log().write("x")
    assert (tmp_path / "n1.0.log").stat().st_mode & 0o777 == 0o600


# --- who held which rank ---------------------------------------------------------------------------------------------


def held(t: float, rank: int, trainer: str, cause: str, what: str = "resumed") -> dict:
    return {"t": t, "what": what, "rank": rank, "trainer": trainer, "cause": cause}


RECORDS = [
    held(1.0, 1, "n1.0", "start", "slots_allocated"),
    {"t": 2.0, "what": "rehearsed", "rank": 1, "trainer": "n2.0", "generation": "0.0"},
    {"t": 5.0, "what": "fault", "cause": "fault-1", "ranks": [1], "node": "n1"},
    held(6.0, 1, "n2.0", "fault-1", "built"),
    held(7.0, 1, "n2.0", "fault-1"),
    {"t": 15.0, "what": "fault", "cause": "fault-2", "ranks": [0], "node": "n0"},
    held(15.5, 1, "n2.0", "fault-2", "unwound"),
    held(17.0, 1, "n2.0", "fault-2"),
    {"t": 25.0, "what": "handover", "cause": "drain-3", "ranks": [1], "node": "n2"},
    held(27.0, 1, "n3.1", "drain-3"),
]


@pytest.mark.parametrize(
    ("around", "expected"),
    [("fault-1", ["n1.0", "n2.0"]), ("fault-2", ["n2.0"]), ("drain-3", ["n2.0", "n3.1"]), (None, ["n3.1"])],
)
def test_rank_is_followed_from_node_to_node(around, expected):
    assert holders(RECORDS, 1, around) == expected


def test_unknown_fault_and_rank_are_refused_with_those_that_are_known():
    with pytest.raises(ConfigError, match="drain-3, fault-1, fault-2"):
        holders(RECORDS, 1, "fault-9")
    with pytest.raises(ConfigError, match="rank=7"):
        holders(RECORDS, 7, None)


def test_trainer_that_died_has_no_mark_and_its_last_lines_are_shown(tmp_path, make_log):
    log = make_log(file_bytes=0)
    for number in range(30):
        log.write(f"line {number}")
    found = excerpt(tmp_path, "n1.0", "fault-1", lines=3)
    assert not found.at_mark and found.lines == ("line 27", "line 28", "line 29")
    assert excerpt(tmp_path, "elsewhere.0", "fault-1", lines=3).path is None


def test_file_that_fails_when_it_is_closed_costs_nothing_else(tmp_path, make_log, monkeypatch):
    log = make_log(file_bytes=20)
    log.write("first line, longer than a file")

    class FailsAtClose:
        def __init__(self, file):
            self._file = file

        def __getattr__(self, name):
            return getattr(self._file, name)

        def close(self):
            self._file.close()
            raise OSError(28, "No space left on device")

    log._file = FailsAtClose(log._file)
    log.write("second")  # in a new file: the one before is closed
    log._file = FailsAtClose(log._file)
    log.close()
    assert text_of(tmp_path).splitlines() == ["first line, longer than a file", "second"]


def test_folder_that_is_gone_for_a_while_is_not_made_anew(tmp_path):
    """It is to be found as it was when its disk is back: a new one in its place would be in the way."""
    folder = tmp_path / "run" / "logs"
    folder.mkdir(parents=True)
    log = TrainerLog(folder, "n1.0", file_bytes=1000, clock=Clock())
    log.write("before")
    (tmp_path / "run").rename(tmp_path / "away")
    log.fault("fault-1")
    log.write("meanwhile")
    assert not (tmp_path / "run").exists()
    (tmp_path / "away").rename(tmp_path / "run")
    log.fault("fault-2")
    log.close()
    assert "meanwhile" in text_of(folder) and (folder / "faults" / "fault-2").is_dir()
