"""The settings of durable checkpoints: what is accepted, and what a wrong value is told."""

from __future__ import annotations

import pytest
from checkpoint_maker import name_of, write_whole

from deadpool.config.job_config import JobConfig
from deadpool.control.durable.checkpoint_search import durable_settings, find_to_begin, find_to_fall_back_to
from deadpool.durable.shards import data_path, part_path
from deadpool.durable.store import DirectoryStore, FsspecStore, open_store
from deadpool.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30m", (1800.0, 0)), ("90s", (90.0, 0)), ("2 h", (7200.0, 0)), ("200 steps", (0.0, 200)), ("1 step", (0.0, 1))],
)
def test_periods(text, expected, tmp_path):
    settings = durable_settings(JobConfig(holders=0, durable=str(tmp_path), durable_every=text).checked(), b"secret")
    assert (settings.every_s, settings.every_steps) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("durable_every", "often"),
        ("durable_every", "0 steps"),
        ("durable_every", "-3m"),
        ("durable_bandwidth", "fast"),
        ("durable_keep", -1),
        ("durable_nice", 20),
        ("durable_timeout_s", 0.0),
        ("resume", "perhaps"),
    ],
)
def test_wrong_values_are_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=name):
        JobConfig(durable="/x", holders=0, **{name: value}).checked()


def test_resume_needs_a_place():
    with pytest.raises(ConfigError, match="--resume"):
        JobConfig(holders=0, resume="auto").checked()


def test_bandwidth(tmp_path):
    for text, expected in (("", 0.0), ("200MB", 2e8), ("1.5 GB/s", 1.5e9), ("1000", 1000.0)):
        config = JobConfig(holders=0, durable=str(tmp_path), durable_bandwidth=text).checked()
        assert durable_settings(config, b"secret").bytes_per_s == expected


def never(name: str, step: int, reason: str) -> None:
    raise AssertionError(f"{name} was skipped: {reason}")


def test_begins_from_the_newest_or_says_why_not(tmp_path):
    where = str(tmp_path / "checkpoints")

    def config(**more):
        settings = {"nodes": 2, "durable": where, **more}
        return JobConfig(**settings).checked()

    ours = durable_settings(config(), b"secret")
    assert find_to_begin(config(resume="auto"), ours, never) == []
    with pytest.raises(ConfigError, match="no complete checkpoint"):
        find_to_begin(config(resume="must"), ours, never)
    for step in (4, 12):
        write_whole(DirectoryStore(tmp_path / "checkpoints"), where, step)
    assert find_to_begin(config(), ours, never) == []
    found = find_to_begin(config(resume="auto"), ours, never)
    assert [checkpoint.number for checkpoint in found] == [12, 4], "the older one is for when bytes have changed"
    with pytest.raises(ConfigError, match="2 nodes with 1 ranks each"):
        find_to_begin(config(resume="auto", nodes=4), ours, never)
    # They are of another job, so a running one does not fall back to them unless it has begun from them.
    assert find_to_fall_back_to(config(), ours) is None
    assert find_to_fall_back_to(config(resume="auto"), ours).number == 12


def test_checkpoint_whose_files_are_gone_is_skipped_but_never_silently_all_of_them(tmp_path):
    where = str(tmp_path / "checkpoints")
    config = JobConfig(nodes=2, durable=where, resume="auto").checked()
    ours = durable_settings(config, b"secret")
    for step in (4, 8, 12):
        write_whole(DirectoryStore(tmp_path / "checkpoints"), where, step)
    skipped = []

    def found() -> int:
        skipped.clear()
        return find_to_begin(config, ours, lambda *each: skipped.append(each))[0].number

    (tmp_path / "checkpoints" / name_of(12) / data_path(1)).unlink()
    assert found() == 8
    assert skipped == [(name_of(12), 12, "__1_0.distcp is missing")]
    with (tmp_path / "checkpoints" / name_of(8) / ".metadata").open("ab") as file:
        file.write(b"more")
    assert found() == 4
    assert [name for name, _, _ in skipped] == [name_of(12), name_of(8)]
    (tmp_path / "checkpoints" / name_of(4) / part_path(0)).unlink()
    with pytest.raises(ConfigError, match=r"can be read any more .*step-000000012.*step-000000004.*--resume no"):
        found()
    assert skipped == []


def test_urls_are_opened_by_fsspec(tmp_path):
    pytest.importorskip("fsspec")
    assert isinstance(open_store(f"file://{tmp_path}"), DirectoryStore)
    store = open_store("memory://bucket/check points")
    assert isinstance(store, FsspecStore)
    write_whole(store, "memory://bucket/check points", 3)
    assert store.folders() == ["step-000000003-test-g1.1-1"]
    store.delete("step-000000003-test-g1.1-1")
    assert store.folders() == []
    with pytest.raises(ConfigError, match="cannot be used"):
        open_store("nosuch://bucket")
