"""A job that hangs: whoever does not come to rest is replaced on its node, the others keep their processes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from stage import EVERY_STEP, Stage

from deadpool.config.job_config import JobConfig

HANG_S = 20.0  # far longer than a step takes, also on a machine that is slow and busy
UNWIND_S = 20.0
LONG_STEP = Path(__file__).with_name("long_step_script.py")


def assert_only_rank_1_was_replaced(stage):
    trainers = stage.trainers()
    assert (trainers[0], trainers[2]) == ("n0.0", "n2.0") and trainers[1] not in ("", "n1.0")
    assert stage.seats() == ["n0", "n1", "n2"]


@pytest.mark.thorough
def test_rank_that_computes_for_ever_is_replaced(make_stage, play):
    scene = "wait@4:1 loop@4:1"
    stage = make_stage("plain", scene, nodes=3, spares=0, hang_timeout_s=HANG_S, unwind_timeout_s=UNWIND_S)
    play(stage, lambda: stage.open_committed_gate(4))
    (fault,) = stage.events("fault")
    assert fault["ranks"] == [] and fault["reason"].startswith("no step for")
    ((rank, node),) = [(event["rank"], event["node"]) for event in stage.events("hung")]
    assert (rank, node) == (1, "n1"), "those that waited for it are not named"
    assert stage.events("no_rank_hung") == []
    assert_only_rank_1_was_replaced(stage)


def test_stopped_process_is_replaced_before_any_timeout(make_stage, play):
    stage = make_stage("plain", "wait@4:1 stop@4:1", nodes=3, spares=0)
    play(stage, lambda: stage.open_committed_gate(4))
    (fault,) = stage.events("fault")
    assert fault["ranks"] == [1] and fault["reason"] == "a signal had stopped it for 2 s"
    assert stage.events("hung") == [] and stage.events("no_rank_hung") == []
    assert_only_rank_1_was_replaced(stage)


@pytest.mark.thorough
def test_everybody_comes_to_rest_and_nobody_is_replaced(make_stage, play):
    stage = make_stage("plain", "wait@4:1 late@4:1", nodes=3, spares=0, hang_timeout_s=HANG_S)
    play(stage, lambda: stage.open_committed_gate(4))
    assert [event["ranks"] for event in stage.events("fault")] == [[]]
    assert len(stage.events("no_rank_hung")) == 1 and stage.events("hung") == []
    assert stage.trainers() == {0: "n0.0", 1: "n1.0", 2: "n2.0"}


@pytest.mark.thorough
def test_pause_that_was_announced_is_no_hang(make_stage, play):
    stage = make_stage("plain", "pause@4:1", nodes=3, spares=0, hang_timeout_s=HANG_S)

    def during():
        stage.await_gate("pause")
        began = time.monotonic()
        stage.trial.await_true(lambda: time.monotonic() > began + 1.5 * HANG_S, "a pause longer than a hang")
        stage.open_gate("pause")

    play(stage, during)
    assert stage.events("fault") == []
    assert [(event["rank"], event["reason"]) for event in stage.events("paused")] == [(1, "evaluation")]


@pytest.fixture
def long_step(tmp_path, fork_server):
    def run(doing: str) -> Stage:
        """Heartbeats are frequent, so that the usual length of a step is known soon."""
        settings = JobConfig(nodes=3, spares=0, node_timeout_s=2.0, **{**EVERY_STEP, "hang_timeout_s": 0.0}).checked()
        stage = Stage(settings, "plain", "", tmp_path / "job", fork_server, LONG_STEP, ["--doing", doing])
        stage.trial.run(lambda _: None)
        return stage

    return run


@pytest.mark.thorough
def test_rank_that_waits_for_ever_is_found_by_its_idleness(long_step):
    stage = long_step("wait")
    (fault,) = stage.events("fault")
    assert fault["ranks"] == [] and "and no rank does anything; behind: ranks 1" in fault["reason"]
    ((rank, found),) = [(event["rank"], event["found"]) for event in stage.events("hung")]
    assert rank == 1 and found.startswith("was idle for")
    assert_only_rank_1_was_replaced(stage)


@pytest.mark.thorough
@pytest.mark.parametrize("doing", ["compile", "evaluate", "save"])
def test_rank_that_works_for_long_is_waited_for(long_step, doing):
    stage = long_step(doing)
    assert stage.events("fault") == []
