"""A job that hangs: whoever does not come to rest is replaced on its node, the others keep their processes."""

from __future__ import annotations

import pytest

HANG_S = 5.0  # for a step that takes milliseconds, on a machine that is busy
UNWIND_S = 5.0


@pytest.mark.parametrize("act", ["stop", pytest.param("loop", marks=pytest.mark.thorough)])
def test_rank_that_does_not_come_to_rest_is_replaced(make_stage, play, act):
    stage = make_stage("plain", f"{act}@4:1", nodes=3, spares=0, hang_timeout_s=HANG_S, unwind_timeout_s=UNWIND_S)
    play(stage, lambda: None)
    (fault,) = stage.events("fault")
    assert fault["ranks"] == [] and fault["reason"].startswith("no step for")
    ((rank, node),) = [(event["rank"], event["node"]) for event in stage.events("hung")]
    assert (rank, node) == (1, "n1"), "those that waited for it are not named"
    assert stage.events("no_rank_hung") == []
    trainers = stage.trainers()
    assert (trainers[0], trainers[2]) == ("n0.0", "n2.0") and trainers[1] not in ("", "n1.0")
    assert stage.seats() == ["n0", "n1", "n2"]


def test_everybody_comes_to_rest_and_nobody_is_replaced(make_stage, play):
    stage = make_stage("plain", "sleep@4:1", nodes=3, spares=0, hang_timeout_s=HANG_S)
    play(stage, lambda: None)
    assert [event["ranks"] for event in stage.events("fault")] == [[]]
    assert len(stage.events("no_rank_hung")) == 1 and stage.events("hung") == []
    assert stage.trainers() == {0: "n0.0", 1: "n1.0", 2: "n2.0"}


@pytest.mark.thorough
def test_pause_that_was_announced_is_no_hang(make_stage, play):
    stage = make_stage("plain", "pause@4:1", nodes=3, spares=0, hang_timeout_s=HANG_S)
    play(stage, lambda: None)
    assert stage.events("fault") == []
    assert [(event["rank"], event["reason"]) for event in stage.events("paused")] == [(1, "evaluation")]
