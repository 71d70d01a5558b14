"""A node that is taken for dead is only stopped, and comes back: its trainers end, it is a spare, and may sit again."""

from __future__ import annotations

import os
import signal

import pytest


def agent_of(gated, node: str) -> int:
    return gated.trial.job.nodes[node].pid


def trainers_of(gated, node: str) -> dict[str, int]:
    return dict(next(each for each in gated.status()["nodes"] if each["node"] == node).get("trainer_pids", {}))


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.thorough
def test_stopped_node_returns_as_a_spare_and_is_seated_again(make_gated_job, run_and_compare):
    gated = make_gated_job(acts="wait@4:1 wait@6:0")

    def during():
        gated.await_gate(4)
        gated.trial.await_event("rehearsed")
        gated.await_committed(4)
        gated.trial.await_true(lambda: bool(trainers_of(gated, "n1")), "process ids")
        before = trainers_of(gated, "n1")
        os.killpg(agent_of(gated, "n1"), signal.SIGSTOP)  # the whole node: no RST, nothing
        gated.open_gate(4)
        gated.trial.await_event("go", count=2)
        os.killpg(agent_of(gated, "n1"), signal.SIGCONT)
        gated.trial.await_event("returned")
        gated.trial.await_true(lambda: all(is_gone(pid) for pid in before.values()), "its trainers' end")
        gated.await_gate(6)
        gated.trial.await_event("rehearsed", count=2)
        gated.kill_node_at_gate("n0", 6)

    run_and_compare(gated, during)
    assert gated.events("fault")[0]["reason"] == "node n1 was silent for 5 s"
    assert gated.events("returned")[0]["copies"]
    assert gated.seats() == ["n1", "n2"]


@pytest.mark.thorough
def test_every_node_is_stopped_and_all_come_back(make_gated_job, run_and_compare):
    """Nobody else has a copy: what is in their arenas is all there is."""
    gated = make_gated_job(acts="wait@4:1", spares=0)

    def during():
        gated.await_gate(4)
        gated.await_committed(4)
        for node in ("n0", "n1"):
            os.kill(agent_of(gated, node), signal.SIGSTOP)
        gated.trial.await_event("awaiting_return")
        for node in ("n0", "n1"):
            os.kill(agent_of(gated, node), signal.SIGCONT)
        gated.open_gate(4)

    run_and_compare(gated, during)
    assert gated.seats() == ["n0", "n1"]
