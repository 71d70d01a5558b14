"""The coordinator dies by SIGKILL in mid-training. Nobody notices; and who comes after it can do all that it could."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest
from waiting import wait_until

from deadpool.errors import JobFailed
from deadpool.views.dashboard.history import History
from deadpool.views.dashboard.interruptions import interruptions


def kill_coordinator(stage) -> int:
    """Returns the process id that it had."""
    pid = stage.trial.job.coordinator.pid
    os.kill(pid, signal.SIGKILL)
    return pid


def kill_with_coordinator(stage, node: str) -> None:
    """The coordinator never learns that the node is gone."""
    with stage.coordinator_suspended() as coordinator:
        stage.trial.job.kill_node(node)
        coordinator.kill()


def await_without_launcher(ready: Callable[[], object]) -> None:
    """Nobody starts the coordinator again meanwhile: its machine is gone."""
    wait_until(ready, "what nodes do without a coordinator")


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


@pytest.mark.thorough
def test_coordinator_killed_and_started_again(make_stage, play):
    stage = make_stage(scene="wait@3:1 wait@5:1")

    def during():
        stage.await_gate(3)
        stage.trial.await_true(lambda: len(trainer_pids(stage)) == 3, "process ids")
        before = trainer_pids(stage)
        kill_coordinator(stage)
        stage.open_gate(3)
        stage.await_gate(5)
        await_term(stage, 2)
        stage.await_committed(5)
        stage.trial.await_true(lambda: trainer_pids(stage) == before, "the same processes")
        stage.open_gate(5)

    assert_nobody_stopped(stage, play(stage, during))


@pytest.mark.thorough
def test_node_lost_after_the_coordinator_has_returned(make_stage, play):
    stage = make_stage(scene="wait@3:1 wait@5:1")

    def during():
        stage.trial.await_event("rehearsed")
        stage.await_gate(3)
        kill_coordinator(stage)
        stage.open_gate(3)
        stage.await_gate(5)
        await_term(stage, 2)
        stage.kill_node_at_gate("n1", 5)

    results = play(stage, during)
    assert stage.seats() == ["n0", "n2"]
    assert results.steps_done_again() <= 1
    assert stage.events("go")[-1]["generation"] == "2.2"


@pytest.mark.thorough
def test_node_and_coordinator_killed_at_once(make_stage, play):
    stage = make_stage(scene="wait@4:1")

    def during():
        stage.trial.await_event("rehearsed")
        stage.await_gate(4)
        stage.await_committed(4)
        kill_with_coordinator(stage, "n1")
        stage.open_gate(4)

    play(stage, during)
    assert stage.seats() == ["n0", "n2"]
    assert [event["running"] for event in stage.events("took_over")] == [False]


@pytest.mark.thorough
@pytest.mark.parametrize("tls", ["off", "ephemeral"])
def test_standby_takes_over_and_recovers_a_node_loss(make_stage, play, tls):
    stage = make_stage(scene="wait@3:1 wait@5:1", nodes=3, standby_coordinators=1, tls=tls)

    def during():
        stage.trial.await_event("rehearsed")
        stage.await_gate(3)
        first = stage.trial.job.run_dir.coordinator()
        kill_coordinator(stage)
        stage.open_gate(3)
        await_without_launcher(lambda: stage.trial.job.run_dir.coordinator() != first)
        stage.await_gate(5)
        await_term(stage, 2)
        stage.kill_node_at_gate("n1", 5)

    results = play(stage, during)
    assert stage.seats() == ["n0", "n3", "n2"]
    assert results.steps_done_again() <= 1


@pytest.mark.parametrize(
    "by_an_outside_clock", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["records", "clock"]
)
def test_node_with_the_coordinator_on_it_dies(make_stage, play, by_an_outside_clock):
    """And nobody starts it again: a standby elsewhere takes the job over and replaces the node. On a busy machine it
    takes survivors a while to be told that a connection has ended, so only a quiet one is held against a clock."""
    stage = make_stage(scene="wait@4:1", nodes=3, standby_coordinators=2)
    killed_at: list[float] = []

    def during():
        stage.trial.await_event("rehearsed")
        stage.await_gate(4)
        stage.await_committed(4)
        kill_with_coordinator(stage, "n0")
        killed_at.append(time.time())
        stage.open_gate(4)
        await_without_launcher(lambda: stage.events("took_over"))

    play(stage, during)
    assert stage.seats() == ["n3", "n1", "n2"]
    assert stage.events("took_over")[0]["running"] is False
    lost_at = assert_reports_agree(stage)
    if by_an_outside_clock:
        back_at, went_at = newest(stage, "resumed"), newest(stage, "go")
        assert back_at - lost_at == pytest.approx(back_at - killed_at[0], rel=0.05)
        assert went_at - lost_at == pytest.approx(went_at - killed_at[0], rel=0.05)


def newest(stage, what: str) -> float:
    return max(event["t"] for event in stage.events(what))


def assert_reports_agree(stage) -> float:
    """All of them count from when the nodes lost their coordinator, which is before another one was there to tell."""
    (recovery,), (fault,), taken = stage.trial.recoveries(), stage.events("fault"), stage.events("took_over")[0]
    assert fault["since_s"] == taken["alone_s"] > 0
    lost_at = fault["t"] - fault["since_s"]
    assert lost_at < taken["t"] <= fault["t"] < newest(stage, "go") < newest(stage, "resumed")
    history = History()
    for record in stage.trial.events():
        history.add(record)
    (interruption,) = interruptions(history)
    assert (interruption.began, recovery.began) == (lost_at, lost_at)
    assert recovery.first_step_s == pytest.approx(newest(stage, "resumed") - lost_at)
    assert interruption.ended == pytest.approx(newest(stage, "resumed"))
    counted_from = taken["t"] - taken["alone_s"]
    assert history.fold.recoveries.stopped_s == pytest.approx(newest(stage, "go") - counted_from)
    assert {name for name, node in history.nodes.items() if node.lost} == {"n0"}
    return lost_at


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("fault", marks=pytest.mark.thorough),
        pytest.param("planned", marks=pytest.mark.thorough),
        pytest.param("prepared", marks=pytest.mark.thorough),
    ],
)
def test_coordinator_killed_in_the_middle_of_a_recovery(make_stage, play, moment):
    """If it gets there before the job goes on without it, which no test can make sure of: either way it goes on."""
    stage = make_stage(scene="wait@4:1 wait@6:0")

    def during():
        before = len(stage.events(moment))
        stage.kill_node_at_gate("n1", 4)
        stage.trial.await_event(moment, count=before + 1)
        kill_coordinator(stage)
        stage.open_gate(6)  # else the job could be over before

    play(stage, during)
    assert stage.seats() == ["n0", "n2"]


@pytest.mark.thorough
def test_nodes_without_any_coordinator_end_their_trainers(make_stage, play):
    """What they left is kept: a coordinator that comes after that goes on from it."""
    stage = make_stage(scene="wait@4:1", isolation_timeout_s=20.0)

    def during():
        stage.await_gate(4)
        stage.await_committed(4)
        stage.trial.await_true(lambda: len(trainer_pids(stage)) == 3, "process ids")
        waiting, trainers = stage.await_gate(4), list(trainer_pids(stage).values())
        assert waiting in trainers
        kill_coordinator(stage)
        await_without_launcher(lambda: not psutil.pid_exists(waiting))
        stage.open_gate(4)

    results = play(stage, during)
    assert {event["node"] for event in stage.events("isolated")} >= {"n0", "n1"}
    assert results.steps_done_again() <= 1


@pytest.mark.thorough
def test_most_nodes_lost_with_a_standby(make_stage):
    """Of several coordinators none can be sure to be the only one. The job does not go on, and does not hang either."""
    stage = make_stage(scene="wait@4:2", nodes=3, standby_coordinators=1, isolation_timeout_s=20.0)

    def during():
        stage.await_gate(4)
        stage.kill_nodes_at_once(["n0", "n1"])
        stage.open_gate(4)

    with pytest.raises(JobFailed, match="NO MAJORITY"):
        stage.trial.run(lambda _: during())
    assert stage.events("no_majority") and stage.events("go")[-1]["generation"] == "1.1"


@pytest.mark.thorough
def test_standby_that_is_lost_is_told_and_so_is_its_return(make_stage, play):
    stage = make_stage(scene="wait@3:1", nodes=3, standby_coordinators=1)

    def during():
        stage.await_gate(3)
        leading = stage.trial.job.coordinator.pid
        (standby,) = [each.process for each in stage.trial.job.coordinators._processes if each.process.pid != leading]
        standby.kill()
        await_without_launcher(lambda: stage.events("no_standby"))
        assert [event["left"] for event in stage.events("standby_lost")] == [0]
        stage.trial.await_event("standby_back")
        stage.open_gate(3)

    play(stage, during)
