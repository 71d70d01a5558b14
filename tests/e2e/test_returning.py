"""A node that is taken for dead is only stopped, and comes back: its trainers end, it is a spare, and may sit again."""

from __future__ import annotations

import os
import signal

import pytest


def agent_of(stage, node: str) -> int:
    return stage.trial.job.nodes[node].pid


def trainers_of(stage, node: str) -> dict[str, int]:
    return dict(next(each for each in stage.status()["nodes"] if each["node"] == node).get("trainer_pids", {}))


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.thorough
def test_stopped_node_returns_as_a_spare_and_is_seated_again(make_stage, play):
    stage = make_stage(scene="wait@4:1 wait@6:0")

    def during():
        stage.await_gate(4)
        stage.trial.await_event("rehearsed")
        stage.await_committed(4)
        stage.trial.await_true(lambda: bool(trainers_of(stage, "n1")), "process ids")
        before = trainers_of(stage, "n1")
        os.killpg(agent_of(stage, "n1"), signal.SIGSTOP)  # the whole node: no RST, nothing
        stage.open_gate(4)
        stage.trial.await_event("go", count=2)
        os.killpg(agent_of(stage, "n1"), signal.SIGCONT)
        stage.trial.await_event("returned")
        stage.trial.await_true(lambda: all(is_gone(pid) for pid in before.values()), "its trainers' end")
        stage.await_gate(6)
        stage.trial.await_event("rehearsed", count=2)
        stage.kill_node_at_gate("n0", 6)

    play(stage, during)
    assert stage.events("fault")[0]["reason"] == "node n1 was silent for 5 s"
    assert stage.events("returned")[0]["copies"]
    assert stage.seats() == ["n1", "n2"]


@pytest.mark.thorough
def test_every_node_is_stopped_and_all_come_back(make_stage, play):
    """Nobody else has a copy: what is in their arenas is all there is."""
    stage = make_stage(scene="wait@4:1", spares=0)

    def during():
        stage.await_gate(4)
        stage.await_committed(4)
        for node in ("n0", "n1"):
            os.kill(agent_of(stage, node), signal.SIGSTOP)
        stage.trial.await_event("awaiting_return")
        for node in ("n0", "n1"):
            os.kill(agent_of(stage, node), signal.SIGCONT)
        stage.open_gate(4)

    play(stage, during)
    assert stage.seats() == ["n0", "n1"]
