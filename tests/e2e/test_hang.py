"""A job that hangs: whoever does not come to rest is replaced on its node, the others keep their processes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob

from deadpool.config.job_config import JobConfig

HANG_S = 20.0  # far longer than a step takes, also on a machine that is slow and busy
UNWIND_S = 20.0
LONG_STEP = Path(__file__).with_name("long_step_script.py")


def assert_only_rank_1_was_replaced(gated):
    trainers = gated.trainers()
    assert (trainers[0], trainers[2]) == ("n0.0", "n2.0") and trainers[1] not in ("", "n1.0")
    assert gated.seats() == ["n0", "n1", "n2"]


@pytest.mark.thorough
def test_rank_that_computes_for_ever_is_replaced(make_gated_job, run_and_compare):
    acts = "wait@4:1 loop@4:1"
    gated = make_gated_job("plain", acts, nodes=3, spares=0, hang_timeout_s=HANG_S, unwind_timeout_s=UNWIND_S)
    run_and_compare(gated, lambda: gated.open_committed_gate(4))
    (fault,) = gated.events("fault")
    assert fault["ranks"] == [] and fault["reason"].startswith("no step for")
    ((rank, node),) = [(event["rank"], event["node"]) for event in gated.events("hung")]
    assert (rank, node) == (1, "n1"), "those that waited for it are not named"
    assert gated.events("no_rank_hung") == []
    assert_only_rank_1_was_replaced(gated)


def test_stopped_process_is_replaced_before_any_timeout(make_gated_job, run_and_compare):
    gated = make_gated_job("plain", "wait@4:1 stop@4:1", nodes=3, spares=0)
    run_and_compare(gated, lambda: gated.open_committed_gate(4))
    (fault,) = gated.events("fault")
    assert fault["ranks"] == [1] and fault["reason"] == "a signal had stopped it for 2 s"
    assert gated.events("hung") == [] and gated.events("no_rank_hung") == []
    assert_only_rank_1_was_replaced(gated)


@pytest.mark.thorough
def test_everybody_comes_to_rest_and_nobody_is_replaced(make_gated_job, run_and_compare):
    gated = make_gated_job("plain", "wait@4:1 late@4:1", nodes=3, spares=0, hang_timeout_s=HANG_S)
    run_and_compare(gated, lambda: gated.open_committed_gate(4))
    assert [event["ranks"] for event in gated.events("fault")] == [[]]
    assert len(gated.events("no_rank_hung")) == 1 and gated.events("hung") == []
    assert gated.trainers() == {0: "n0.0", 1: "n1.0", 2: "n2.0"}


@pytest.mark.thorough
def test_pause_that_was_announced_is_no_hang(make_gated_job, run_and_compare):
    gated = make_gated_job("plain", "pause@4:1", nodes=3, spares=0, hang_timeout_s=HANG_S)

    def during():
        gated.await_gate("pause")
        began = time.monotonic()
        gated.trial.await_true(lambda: time.monotonic() > began + 1.5 * HANG_S, "a pause longer than a hang")
        gated.open_gate("pause")

    run_and_compare(gated, during)
    assert gated.events("fault") == []
    assert [(event["rank"], event["reason"]) for event in gated.events("paused")] == [(1, "evaluation")]


@pytest.fixture
def long_step(tmp_path, fork_server):
    def run(doing: str) -> GatedJob:
        """Heartbeats are frequent, so that the usual length of a step is known soon."""
        settings = JobConfig(nodes=3, spares=0, node_timeout_s=2.0, **{**EVERY_STEP, "hang_timeout_s": 0.0}).checked()
        gated = GatedJob(settings, "plain", "", tmp_path / "job", fork_server, LONG_STEP, ["--doing", doing])
        gated.trial.run(lambda _: None)
        return gated

    return run


@pytest.mark.thorough
def test_rank_that_waits_for_ever_is_found_by_its_idleness(long_step):
    gated = long_step("wait")
    (fault,) = gated.events("fault")
    assert fault["ranks"] == [] and "and no rank does anything; behind: ranks 1" in fault["reason"]
    ((rank, found),) = [(event["rank"], event["found"]) for event in gated.events("hung")]
    assert rank == 1 and found.startswith("was idle for")
    assert_only_rank_1_was_replaced(gated)


@pytest.mark.thorough
@pytest.mark.parametrize("doing", ["compile", "evaluate", "save"])
def test_rank_that_works_for_long_is_waited_for(long_step, doing):
    gated = long_step(doing)
    assert gated.events("fault") == []
