"""The coordinator dies by SIGKILL in mid-training. Nobody notices; and who comes after it can do all that it could."""

from __future__ import annotations

import os
import signal


def kill_coordinator(stage) -> int:
    """Returns the process id that it had."""
    pid = stage.trial.job.coordinator.pid
    os.kill(pid, signal.SIGKILL)
    return pid


def trainer_pids(stage) -> dict[str, int]:
    return {name: pid for node in stage.status()["nodes"] for name, pid in node.get("trainer_pids", {}).items()}


def await_term(stage, term: int) -> None:
    stage.trial.await_event("took_over", count=term - 1)
    assert stage.status()["term"] == term


def assert_nobody_stopped(stage, results) -> None:
    """No fence, no plan but the first, no step done twice: the processes are those that began."""
    assert stage.events("fence") == [] and len(stage.events("planned")) == 1
    assert results.steps_done_again() == 0
    assert [event["running"] for event in stage.events("took_over")] == [True]


def test_coordinator_killed_and_started_again(make_stage, play):
    stage = make_stage(scene="wait@3:1 wait@5:1")

    def during():
        stage.await_gate(3)
        stage.trial.await_true(lambda: len(trainer_pids(stage)) == 3, "process ids", 30.0)
        before = trainer_pids(stage)
        kill_coordinator(stage)
        stage.open_gate(3)
        stage.await_gate(5)
        await_term(stage, 2)
        stage.await_committed(4)
        stage.trial.await_true(lambda: trainer_pids(stage) == before, "the same processes", 30.0)
        stage.open_gate(5)

    assert_nobody_stopped(stage, play(stage, during))


def test_node_lost_after_the_coordinator_has_returned(make_stage, play):
    stage = make_stage(scene="wait@3:1 wait@5:1")

    def during():
        stage.trial.await_event("rehearsed")
        stage.await_gate(3)
        kill_coordinator(stage)
        stage.open_gate(3)
        stage.await_gate(5)
        await_term(stage, 2)
        stage.await_committed(4)
        stage.kill_node_at_gate("n1", 5)

    results = play(stage, during)
    assert stage.seats() == ["n0", "n2"]
    assert results.steps_done_again() <= 1
    assert stage.events("go")[-1]["generation"] == "2.2"


def test_node_and_coordinator_killed_at_once(make_stage, play):
    stage = make_stage(scene="wait@4:1", node_timeout_s=2.0)

    def during():
        stage.trial.await_event("rehearsed")
        stage.await_gate(4)
        stage.await_committed(3)
        kill_coordinator(stage)
        stage.kill_node_at_gate("n1", 4)

    play(stage, during)
    assert stage.seats() == ["n0", "n2"]
    assert [event["running"] for event in stage.events("took_over")] == [False]


def test_standby_takes_over_and_recovers_a_node_loss(make_stage, play):
    stage = make_stage(scene="wait@3:1 wait@5:1", nodes=3, standby_coordinators=1)

    def during():
        stage.trial.await_event("rehearsed")
        stage.await_gate(3)
        killed = kill_coordinator(stage)
        stage.open_gate(3)
        stage.await_gate(5)
        await_term(stage, 2)
        assert stage.trial.job.coordinator.pid != killed
        stage.await_committed(4)
        stage.kill_node_at_gate("n1", 5)

    results = play(stage, during)
    assert stage.seats() == ["n0", "n3", "n2"]
    assert results.steps_done_again() <= 1


def test_coordinator_killed_in_the_middle_of_a_recovery(make_stage, play):
    stage = make_stage(scene="wait@4:1", node_timeout_s=2.0)

    def during():
        stage.kill_node_at_gate("n1", 4)
        stage.trial.await_event("planned", count=2)
        kill_coordinator(stage)

    play(stage, during)
    assert stage.seats() == ["n0", "n2"]
