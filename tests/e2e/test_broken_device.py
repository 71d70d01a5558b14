"""A process whose device is broken cannot go on: another one takes its rank, on its node. With a twin of the device;
tests/gpu has a real one."""

from __future__ import annotations

import pytest

from deadpool.errors import JobFailed

DEVICE_ERROR = "CUDA error: device-side assert triggered"  # in the words of acts.py


def test_fresh_process_takes_the_rank_and_survivors_stay(make_gated_job, run_and_compare):
    gated = make_gated_job("plain", "wait@4:1 break@4:1", nodes=3, spares=0)
    run_and_compare(gated, lambda: gated.open_committed_gate(4))
    assert [(event["rank"], event["reason"]) for event in gated.events("device_lost")] == [(1, DEVICE_ERROR)]
    ((node, ranks, reason),) = [(f["node"], f["ranks"], f["reason"]) for f in gated.events("fault")]
    assert (node, ranks, reason) == ("n1", [1], f"device: {DEVICE_ERROR}")
    trainers = gated.trainers()
    assert (trainers[0], trainers[2]) == ("n0.0", "n2.0") and trainers[1] != "n1.0"
    assert gated.seats() == ["n0", "n1", "n2"]


@pytest.mark.thorough
def test_device_that_breaks_in_the_same_step_each_time_ends_the_job(make_gated_job):
    gated = make_gated_job("plain", "wait@4:1 broken@4:1", spares=0)
    with pytest.raises(JobFailed, match="code 1"):
        gated.trial.run(lambda _: gated.open_committed_gate(4))
    reason = gated.events("failed")[0]["reason"]
    assert "rank 1 failed again in the same way" in reason and DEVICE_ERROR in reason
    assert len(gated.events("fault")) <= 2, "once, and once more if a version was completed in between"
