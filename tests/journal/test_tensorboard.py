"""Event files show which steps they have; tensorboard's own reader finds each step once and in order."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("tensorboard", reason="needs the package tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from deadpool.journal import Entry, Run, TensorBoard

RUN = Run("aa", 0)


def entries(*steps: int) -> list[Entry]:
    values = {"loss": 0.5, "lr": 1.0, "a": {"b": True}, "text": "left out", "list": [1]}
    return [Entry(step, 1e9 + step, json.dumps({**values, "lr": float(step)})) for step in steps]


def steps(folder: Path, tag: str = "loss") -> list[int]:
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return [scalar.step for scalar in reader.Scalars(tag)]


@pytest.fixture
def opened(tmp_path):
    made = []

    def make(run: Run = RUN) -> TensorBoard:
        sink = TensorBoard(tmp_path)
        sink.open(run)
        made.append(sink)
        return sink

    yield make
    for sink in made:
        sink.close()


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("events.*"))


def test_numbers_become_scalars(opened, tmp_path):
    assert opened().write(entries(0, 1, 2)) is None
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    assert sorted(reader.Tags()["scalars"]) == ["a/b", "loss", "lr"]
    assert [(scalar.step, scalar.value, scalar.wall_time) for scalar in reader.Scalars("lr")] == [
        (step, float(step), 1e9 + step) for step in range(3)
    ]


def test_whoever_comes_begins_a_file_and_skips_what_is_there(opened, tmp_path):
    opened().write(entries(0, 1, 2))
    opened().write(entries(1, 2, 3))
    opened().write(entries(3, 4))
    assert len(files(tmp_path)) == 3 and steps(tmp_path) == steps(tmp_path, "a/b") == [0, 1, 2, 3, 4]


def test_nothing_new_makes_no_file(opened, tmp_path):
    opened().write(entries(0))
    opened().write(entries(0))
    assert len(files(tmp_path)) == 1


def test_zombie_that_wakes_up_repeats_nothing(opened, tmp_path):
    zombie, successor = opened(), opened()
    zombie.write(entries(0, 1))
    successor.write(entries(1, 2, 3))
    zombie.write(entries(2, 3))
    successor.write(entries(4))
    zombie.write(entries(4, 5))
    successor.write(entries(6))
    assert steps(tmp_path) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("cut", [1, 30])
def test_torn_record_is_written_again(opened, tmp_path, cut):
    opened().write(entries(0, 1, 2))
    (path,) = files(tmp_path)
    os.truncate(path, path.stat().st_size - cut)
    opened().write(entries(1, 2, 3))
    assert steps(tmp_path) == [0, 1, 2, 3]


def test_other_jobs_in_the_folder_do_not_count(opened, tmp_path):
    opened(Run("old", 0)).write(entries(0, 1, 2))
    opened().write(entries(0, 1))
    assert len(files(tmp_path)) == 2
    assert [path.name.split(".")[-2:] for path in files(tmp_path)] == [["old", "rank0"], ["aa", "rank0"]]
