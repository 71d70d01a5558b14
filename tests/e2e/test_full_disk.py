"""The disk of the run folder is full: training and recoveries go on, and the log is whole once there is room again."""

from __future__ import annotations

import mmap
import os
import signal

import pytest
from gated_job import STEPS
from small_disk import small_disk

from deadpool.cli.job_client import ask


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "run", "4m") as disk:
        yield disk


def storage_of(gated) -> list[dict[str, object]]:
    return ask(gated.trial.job.run_dir, "status")["storage"]


def has_told(gated, what_waits: str) -> bool:
    told = [(each["what_waits"], each["reason"]) for each in storage_of(gated)]
    return (what_waits, "No space left on device") in told


def can_be_asked(gated) -> bool:
    """job.json names the coordinator of now."""
    return gated.trial.job.run_dir.coordinator_pid() == gated.trial.job.coordinator.pid


def assert_log_is_whole(gated) -> None:
    events = gated.trial.events()
    assert [event["rank"] for event in events if event["what"] == "resumed"], "the recovery came while it was full"
    assert {"storage_failed", "storage_back", "completed"} <= {event["what"] for event in events}
    assert gated.trial.console().count("Traceback") == 0


def test_node_and_trainer_lost_while_it_is_full(make_gated_job, run_and_compare, disk):
    gated = make_gated_job("ddp", acts="wait@3:1 wait@6:0", spares=1)

    def during():
        gated.await_gate(3)
        gated.trial.await_event("rehearsed")
        disk.fill()
        gated.kill_node_at_gate("n1", 3)
        gated.await_gate(6)
        gated.trial.await_true(lambda: has_told(gated, "events"), "status to tell that events are not written")
        disk.empty()
        gated.trial.await_true(lambda: not storage_of(gated), "all of it to be written")
        gated.trial.await_event("storage_back")
        gated.open_gate(6)

    run_and_compare(gated, during)
    assert_log_is_whole(gated)


@pytest.mark.thorough
def test_coordinator_killed_while_it_is_full(make_gated_job, run_and_compare, disk):
    gated = make_gated_job("ddp", acts="wait@3:1 wait@6:0")

    def during():
        gated.await_gate(3)
        gated.trial.await_event("rehearsed")
        disk.fill()
        first = gated.trial.job.coordinator
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        gated.trial.await_true(lambda: gated.trial.job.coordinator.pid != first.pid, "another coordinator")
        gated.kill_node_at_gate("n1", 3, committed=False)
        gated.await_gate(6)
        log = disk.path / "events.jsonl"
        gated.trial.await_true(lambda: log.stat().st_size % mmap.PAGESIZE == 0, "the end of the log's last page")
        disk.empty()
        gated.trial.await_true(lambda: can_be_asked(gated) and not storage_of(gated), "all of it to be written")
        gated.trial.await_event("storage_back")
        gated.open_gate(6)

    run_and_compare(gated, during)
    assert_log_is_whole(gated)


@pytest.mark.thorough
def test_coordinator_killed_while_it_is_read_only(make_gated_job, run_and_compare, disk, tmp_path):
    """The one that takes over cannot open a file."""
    gated = make_gated_job("ddp", acts="wait@3:1 wait@6:0")

    def during():
        gated.await_gate(3)
        gated.trial.await_event("rehearsed")
        disk.make_read_only()
        first = gated.trial.job.coordinator
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        gated.trial.await_true(lambda: gated.trial.job.coordinator.pid != first.pid, "another coordinator")
        gated.kill_node_at_gate("n1", 3, committed=False)
        gated.await_gate(6)
        disk.make_writable()
        gated.trial.await_true(lambda: can_be_asked(gated) and not storage_of(gated), "all of it to be written")
        gated.trial.await_event("storage_back")
        gated.open_gate(6)

    with (tmp_path / "console").open("wb") as output:  # its own console does not lie on that disk
        gated.trial.job.output = output.fileno()
        run_and_compare(gated, during)
    assert_log_is_whole(gated)


@pytest.mark.thorough
def test_job_ends_well_although_it_stays_full(make_gated_job, run_and_compare, disk):
    gated = make_gated_job("ddp", acts="wait@3:1")

    def during():
        gated.await_gate(3)
        disk.fill()
        gated.open_gate(3)

    results = run_and_compare(gated, during)
    assert results.newest_step() == STEPS - 1


@pytest.mark.parametrize("standbys", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_coordinator_killed_while_the_folder_is_gone(make_gated_job, run_and_compare, tmp_path, standbys):
    """The one that is started again gets the secret from the launcher, and makes no folder."""
    gated = make_gated_job("ddp", acts="wait@3:1 wait@6:0", nodes=2 + standbys, standby_coordinators=standbys)
    folder, away = tmp_path / "run", tmp_path / "away"

    def during():
        gated.await_gate(3)
        gated.trial.await_event("rehearsed")
        gated.await_committed(3)
        job = gated.trial.job
        first = job.coordinator
        assert first is not None
        folder.rename(away)
        os.kill(first.pid, signal.SIGKILL)
        restarted = job.coordinators
        gated.trial.await_true(lambda: first.pid not in pids_of(restarted), "another coordinator")
        gated.open_gate(3)
        gated.await_gate(6)
        assert not folder.exists()
        away.rename(folder)
        gated.trial.await_true(lambda: can_be_asked(gated) and not storage_of(gated), "all of it to be written")
        gated.open_gate(6)

    with (tmp_path / "console").open("wb") as output:
        gated.trial.job.output = output.fileno()
        run_and_compare(gated, during)
    assert {"took_over", "completed"} <= {event["what"] for event in gated.trial.events()}


def pids_of(coordinators) -> list[int]:
    return [each.process.pid for each in coordinators._processes]
