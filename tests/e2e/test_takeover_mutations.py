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
from deadpool.views.dashboard.history import JobHistory, interruptions


def kill_coordinator(gated) -> int:
    """Returns the process id that it had."""
    pid = gated.trial.job.coordinator.pid
    os.kill(pid, signal.SIGKILL)
    return pid


def kill_with_coordinator(gated, node: str) -> None:
    """The coordinator never learns that the node is gone."""
    with gated.coordinator_suspended() as coordinator:
        gated.trial.job.kill_node(node)
        coordinator.kill()


def await_without_launcher(ready: Callable[[], object]) -> None:
    """Nobody starts the coordinator again meanwhile: its machine is gone."""
    wait_until(ready, "what nodes do without a coordinator")


def trainer_pids(gated) -> dict[str, int]:
    return {name: pid for node in gated.status()["nodes"] for name, pid in node.get("trainer_pids", {}).items()}


def await_term(gated, term: int) -> None:
    gated.trial.await_event("took_over", count=term - 1)
    assert gated.status()["term"] == term


def assert_nobody_stopped(gated, results) -> None:
    """No fence, no plan but the first, no step done twice: the processes are those that began."""
    assert gated.events("fence") == [] and len(gated.events("planned")) == 1
    assert results.steps_done_again() == 0
    assert [event["running"] for event in gated.events("took_over")] == [True]


@pytest.mark.thorough
def test_coordinator_killed_and_started_again(make_gated_job, run_and_compare):
    gated = make_gated_job(acts="wait@3:1 wait@5:1")

    def during():
        gated.await_gate(3)
        gated.trial.await_true(lambda: len(trainer_pids(gated)) == 3, "process ids")
        before = trainer_pids(gated)
        kill_coordinator(gated)
        gated.open_gate(3)
        gated.await_gate(5)
        await_term(gated, 2)
        gated.await_committed(5)
        gated.trial.await_true(lambda: trainer_pids(gated) == before, "the same processes")
        gated.open_gate(5)

    assert_nobody_stopped(gated, run_and_compare(gated, during))


@pytest.mark.thorough
def test_node_lost_after_the_coordinator_has_returned(make_gated_job, run_and_compare):
    gated = make_gated_job(acts="wait@3:1 wait@5:1")

    def during():
        gated.trial.await_event("rehearsed")
        gated.await_gate(3)
        kill_coordinator(gated)
        gated.open_gate(3)
        gated.await_gate(5)
        await_term(gated, 2)
        gated.kill_node_at_gate("n1", 5)

    results = run_and_compare(gated, during)
    assert gated.seats() == ["n0", "n2"]
    assert results.steps_done_again() <= 1
    assert gated.events("go")[-1]["generation"] == "2.2"


@pytest.mark.thorough
def test_node_and_coordinator_killed_at_once(make_gated_job, run_and_compare):
    gated = make_gated_job(acts="wait@4:1")

    def during():
        gated.trial.await_event("rehearsed")
        gated.await_gate(4)
        gated.await_committed(4)
        kill_with_coordinator(gated, "n1")
        gated.open_gate(4)

    run_and_compare(gated, during)
    assert gated.seats() == ["n0", "n2"]
    assert [event["running"] for event in gated.events("took_over")] == [False]


@pytest.mark.thorough
@pytest.mark.parametrize("tls", ["off", "ephemeral"])
def test_standby_takes_over_and_recovers_a_node_loss(make_gated_job, run_and_compare, tls):
    gated = make_gated_job(acts="wait@3:1 wait@5:1", nodes=3, standby_coordinators=1, tls=tls)

    def during():
        gated.trial.await_event("rehearsed")
        gated.await_gate(3)
        first = gated.trial.job.run_dir.coordinator()
        kill_coordinator(gated)
        gated.open_gate(3)
        await_without_launcher(lambda: gated.trial.job.run_dir.coordinator() != first)
        gated.await_gate(5)
        await_term(gated, 2)
        gated.kill_node_at_gate("n1", 5)

    results = run_and_compare(gated, during)
    assert gated.seats() == ["n0", "n3", "n2"]
    assert results.steps_done_again() <= 1


@pytest.mark.thorough
@pytest.mark.parametrize("by_an_outside_clock", [False, True], ids=["records", "clock"])
def test_node_with_the_coordinator_on_it_dies(make_gated_job, run_and_compare, by_an_outside_clock):
    """And nobody starts it again: a standby elsewhere takes the job over and replaces the node. On a busy machine it
    takes survivors a while to be told that a connection has ended, so only a quiet one is held against a clock."""
    gated = make_gated_job(acts="wait@4:1", nodes=3, standby_coordinators=2)
    killed_at: list[float] = []

    def during():
        gated.trial.await_event("rehearsed")
        gated.await_gate(4)
        gated.await_committed(4)
        kill_with_coordinator(gated, "n0")
        killed_at.append(time.time())
        gated.open_gate(4)
        await_without_launcher(lambda: gated.events("took_over"))

    run_and_compare(gated, during)
    assert gated.seats() == ["n3", "n1", "n2"]
    assert gated.events("took_over")[0]["running"] is False
    lost_at = assert_reports_agree(gated)
    if by_an_outside_clock:
        back_at, went_at = newest(gated, "resumed"), newest(gated, "go")
        assert back_at - lost_at == pytest.approx(back_at - killed_at[0], rel=0.05)
        assert went_at - lost_at == pytest.approx(went_at - killed_at[0], rel=0.05)


def newest(gated, what: str) -> float:
    return max(event["t"] for event in gated.events(what))


def assert_reports_agree(gated) -> float:
    """All of them count from when the nodes lost their coordinator, which is before another one was there to tell."""
    (recovery,), (fault,), taken = gated.trial.recoveries(), gated.events("fault"), gated.events("took_over")[0]
    assert fault["since_s"] == taken["alone_s"] > 0
    lost_at = fault["t"] - fault["since_s"]
    assert lost_at < taken["t"] <= fault["t"] < newest(gated, "go") < newest(gated, "resumed")
    history = JobHistory()
    for record in gated.trial.events():
        history.add(record)
    (interruption,) = interruptions(history)
    assert (interruption.began, recovery.began) == (lost_at, lost_at)
    assert recovery.first_step_s == pytest.approx(newest(gated, "resumed") - lost_at)
    assert interruption.ended == pytest.approx(newest(gated, "resumed"))
    counted_from = taken["t"] - taken["alone_s"]
    assert history.fold.recoveries.stopped_s == pytest.approx(newest(gated, "go") - counted_from)
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
def test_coordinator_killed_in_the_middle_of_a_recovery(make_gated_job, run_and_compare, moment):
    """If it gets there before the job goes on without it, which no test can make sure of: either way it goes on."""
    gated = make_gated_job(acts="wait@4:1 wait@6:0")

    def during():
        before = len(gated.events(moment))
        gated.kill_node_at_gate("n1", 4)
        gated.trial.await_event(moment, count=before + 1)
        kill_coordinator(gated)
        gated.open_gate(6)  # else the job could be over before

    run_and_compare(gated, during)
    assert gated.seats() == ["n0", "n2"]


@pytest.mark.thorough
def test_nodes_without_any_coordinator_end_their_trainers(make_gated_job, run_and_compare):
    """What they left is kept: a coordinator that comes after that goes on from it."""
    gated = make_gated_job(acts="wait@4:1", isolation_timeout_s=20.0)

    def during():
        gated.await_gate(4)
        gated.await_committed(4)
        gated.trial.await_true(lambda: len(trainer_pids(gated)) == 3, "process ids")
        waiting, trainers = gated.await_gate(4), list(trainer_pids(gated).values())
        assert waiting in trainers
        kill_coordinator(gated)
        await_without_launcher(lambda: not psutil.pid_exists(waiting))
        gated.open_gate(4)

    results = run_and_compare(gated, during)
    assert {event["node"] for event in gated.events("isolated")} >= {"n0", "n1"}
    assert results.steps_done_again() <= 1


@pytest.mark.thorough
def test_most_nodes_lost_with_a_standby(make_gated_job):
    """Of several coordinators none can be sure to be the only one. The job does not go on, and does not hang either."""
    gated = make_gated_job(acts="wait@4:2", nodes=3, standby_coordinators=1, isolation_timeout_s=20.0)

    def during():
        gated.await_gate(4)
        gated.kill_nodes_at_once(["n0", "n1"])
        gated.open_gate(4)

    with pytest.raises(JobFailed, match="NO MAJORITY"):
        gated.trial.run(lambda _: during())
    assert gated.events("no_majority") and gated.events("go")[-1]["generation"] == "1.1"


@pytest.mark.thorough
def test_standby_that_is_lost_is_told_and_so_is_its_return(make_gated_job, run_and_compare):
    gated = make_gated_job(acts="wait@3:1", nodes=3, standby_coordinators=1)

    def during():
        gated.await_gate(3)
        leading = gated.trial.job.coordinator.pid
        (standby,) = [each.process for each in gated.trial.job.coordinators._processes if each.process.pid != leading]
        standby.kill()
        await_without_launcher(lambda: gated.events("no_standby"))
        assert [event["left"] for event in gated.events("standby_lost")] == [0]
        gated.trial.await_event("standby_back")
        gated.open_gate(3)

    run_and_compare(gated, during)
