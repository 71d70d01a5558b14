"""The disk of the run folder is full: training and recoveries go on, and the log is whole once there is room again."""

from __future__ import annotations

import mmap
import os
import signal

import pytest
from small_disk import small_disk
from stage import STEPS

from deadpool.cli.job_client import ask


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "run", "4m") as disk:
        yield disk


def storage_of(stage) -> list[dict[str, object]]:
    return ask(stage.trial.job.run_dir, "status")["storage"]


def has_told(stage, what_waits: str) -> bool:
    told = [(each["what_waits"], each["reason"]) for each in storage_of(stage)]
    return (what_waits, "No space left on device") in told


def can_be_asked(stage) -> bool:
    """job.json names the coordinator of now."""
    return stage.trial.job.run_dir.coordinator_pid() == stage.trial.job.coordinator.pid


def assert_log_is_whole(stage) -> None:
    events = stage.trial.events()
    assert [event["rank"] for event in events if event["what"] == "resumed"], "the recovery came while it was full"
    assert {"storage_failed", "storage_back", "completed"} <= {event["what"] for event in events}
    assert stage.trial.console().count("Traceback") == 0


def test_node_and_trainer_lost_while_it_is_full(make_stage, play, disk):
    stage = make_stage("ddp", scene="wait@3:1 wait@6:0", spares=1)

    def during():
        stage.await_gate(3)
        stage.trial.await_event("rehearsed")
        disk.fill()
        stage.kill_node_at_gate("n1", 3)
        stage.await_gate(6)
        stage.trial.await_true(lambda: has_told(stage, "events"), "status to tell that events are not written")
        disk.empty()
        stage.trial.await_true(lambda: not storage_of(stage), "all of it to be written")
        stage.trial.await_event("storage_back")
        stage.open_gate(6)

    play(stage, during)
    assert_log_is_whole(stage)


@pytest.mark.thorough
def test_coordinator_killed_while_it_is_full(make_stage, play, disk):
    stage = make_stage("ddp", scene="wait@3:1 wait@6:0")

    def during():
        stage.await_gate(3)
        stage.trial.await_event("rehearsed")
        disk.fill()
        first = stage.trial.job.coordinator
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        stage.trial.await_true(lambda: stage.trial.job.coordinator.pid != first.pid, "another coordinator")
        stage.kill_node_at_gate("n1", 3, committed=False)
        stage.await_gate(6)
        log = disk.path / "events.jsonl"
        stage.trial.await_true(lambda: log.stat().st_size % mmap.PAGESIZE == 0, "the end of the log's last page")
        disk.empty()
        stage.trial.await_true(lambda: can_be_asked(stage) and not storage_of(stage), "all of it to be written")
        stage.trial.await_event("storage_back")
        stage.open_gate(6)

    play(stage, during)
    assert_log_is_whole(stage)


@pytest.mark.thorough
def test_coordinator_killed_while_it_is_read_only(make_stage, play, disk, tmp_path):
    """The one that takes over cannot open a file."""
    stage = make_stage("ddp", scene="wait@3:1 wait@6:0")

    def during():
        stage.await_gate(3)
        stage.trial.await_event("rehearsed")
        disk.make_read_only()
        first = stage.trial.job.coordinator
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        stage.trial.await_true(lambda: stage.trial.job.coordinator.pid != first.pid, "another coordinator")
        stage.kill_node_at_gate("n1", 3, committed=False)
        stage.await_gate(6)
        disk.make_writable()
        stage.trial.await_true(lambda: can_be_asked(stage) and not storage_of(stage), "all of it to be written")
        stage.trial.await_event("storage_back")
        stage.open_gate(6)

    with (tmp_path / "console").open("wb") as output:  # its own console does not lie on that disk
        stage.trial.job.output = output.fileno()
        play(stage, during)
    assert_log_is_whole(stage)


@pytest.mark.thorough
def test_job_ends_well_although_it_stays_full(make_stage, play, disk):
    stage = make_stage("ddp", scene="wait@3:1")

    def during():
        stage.await_gate(3)
        disk.fill()
        stage.open_gate(3)

    results = play(stage, during)
    assert results.newest_step() == STEPS - 1


@pytest.mark.parametrize("standbys", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_coordinator_killed_while_the_folder_is_gone(make_stage, play, tmp_path, standbys):
    """The one that is started again gets the secret from the launcher, and makes no folder."""
    stage = make_stage("ddp", scene="wait@3:1 wait@6:0", nodes=2 + standbys, standby_coordinators=standbys)
    folder, away = tmp_path / "run", tmp_path / "away"

    def during():
        stage.await_gate(3)
        stage.trial.await_event("rehearsed")
        stage.await_committed(3)
        job = stage.trial.job
        first = job.coordinator
        assert first is not None
        folder.rename(away)
        os.kill(first.pid, signal.SIGKILL)
        restarted = job.coordinators
        stage.trial.await_true(lambda: first.pid not in pids_of(restarted), "another coordinator")
        stage.open_gate(3)
        stage.await_gate(6)
        assert not folder.exists()
        away.rename(folder)
        stage.trial.await_true(lambda: can_be_asked(stage) and not storage_of(stage), "all of it to be written")
        stage.open_gate(6)

    with (tmp_path / "console").open("wb") as output:
        stage.trial.job.output = output.fileno()
        play(stage, during)
    assert {"took_over", "completed"} <= {event["what"] for event in stage.trial.events()}


def pids_of(coordinators) -> list[int]:
    return [each.process.pid for each in coordinators._processes]
