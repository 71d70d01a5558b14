"""What goes wrong on a real device: the process is replaced on its node, survivors stay, no loss is different.

tests/e2e/test_broken_device.py has the same with a twin of the device, tests/e2e/test_hangs.py hangs of the host.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from gated_job import GatedJob

from deadpool.config.job_config import JobConfig
from deadpool.demo.trial import differences
from deadpool.errors import JobFailed

pytestmark = pytest.mark.gpu

SCRIPT = Path(__file__).with_name("device_faults_script.py")
BACKENDS = ("nccl",) if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1" else ("gloo",)
HANG_S, UNWIND_S = 20.0, 10.0  # first steps load kernels

Make = Callable[..., GatedJob]


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest, tmp_path: Path, fork_server) -> Make:
    def gated(fault: str, **settings: object) -> GatedJob:
        config = JobConfig(nodes=3, spares=0, overhead_budget=0.0, **settings).checked()
        arguments = ["--device", "cuda", "--backend", request.param, "--fault", fault]
        return GatedJob(config, "", "", tmp_path / fault, fork_server, SCRIPT, arguments)

    return gated


def check_only_rank_1_was_replaced(gated: GatedJob) -> None:
    trainers = gated.trainers()
    assert (trainers[0], trainers[2]) == ("n0.0", "n2.0") and trainers[1] != "n1.0"
    assert gated.seats() == ["n0", "n1", "n2"]


def test_assert_on_the_device(make: Make):
    undisturbed, gated = make("none").trial.run(), make("assert")
    assert differences(undisturbed, gated.trial.run()) == []
    ((rank, reason),) = [(event["rank"], event["reason"]) for event in gated.events("device_lost")]
    assert rank == 1 and "assert" in reason
    assert [fault["ranks"] for fault in gated.events("fault")] == [[1]]
    check_only_rank_1_was_replaced(gated)


def test_assert_in_the_same_step_each_time_ends_the_job(make: Make):
    gated = make("asserts")
    with pytest.raises(JobFailed, match="code 1"):
        gated.trial.run()
    reason = gated.events("failed")[0]["reason"]
    assert "rank 1 failed again in the same way: device: " in reason and "assert" in reason


def test_kernel_that_does_not_end(make: Make):
    undisturbed, gated = make("none").trial.run(), make("hang", hang_timeout_s=HANG_S, unwind_timeout_s=UNWIND_S)
    assert differences(undisturbed, gated.trial.run()) == []
    assert [(event["rank"], event["node"]) for event in gated.events("hung")] == [(1, "n1")]
    check_only_rank_1_was_replaced(gated)
