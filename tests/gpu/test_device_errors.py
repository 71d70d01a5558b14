"""What goes wrong on a real device: the process is replaced on its node, survivors stay, no loss is different.

tests/e2e/test_broken_device.py has the same with a twin of the device, tests/e2e/test_hangs.py hangs of the host.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from stage import Stage

from deadpool.config.job_config import JobConfig
from deadpool.demo.results import differences
from deadpool.errors import JobFailed

pytestmark = pytest.mark.gpu

SCRIPT = Path(__file__).with_name("device_faults_script.py")
BACKENDS = ("nccl",) if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1" else ("gloo",)
HANG_S, UNWIND_S = 20.0, 10.0  # first steps load kernels

Make = Callable[..., Stage]


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest, tmp_path: Path, fork_server) -> Make:
    def stage(fault: str, **settings: object) -> Stage:
        config = JobConfig(nodes=3, spares=0, overhead_budget=0.0, **settings).checked()
        arguments = ["--device", "cuda", "--backend", request.param, "--fault", fault]
        return Stage(config, "", "", tmp_path / fault, fork_server, SCRIPT, arguments)

    return stage


def check_only_rank_1_was_replaced(stage: Stage) -> None:
    trainers = stage.trainers()
    assert (trainers[0], trainers[2]) == ("n0.0", "n2.0") and trainers[1] != "n1.0"
    assert stage.seats() == ["n0", "n1", "n2"]


def test_assert_on_the_device(make: Make):
    undisturbed, stage = make("none").trial.run(), make("assert")
    assert differences(undisturbed, stage.trial.run()) == []
    ((rank, reason),) = [(event["rank"], event["reason"]) for event in stage.events("device_lost")]
    assert rank == 1 and "assert" in reason
    assert [fault["ranks"] for fault in stage.events("fault")] == [[1]]
    check_only_rank_1_was_replaced(stage)


def test_assert_in_the_same_step_each_time_ends_the_job(make: Make):
    stage = make("asserts")
    with pytest.raises(JobFailed, match="code 1"):
        stage.trial.run()
    reason = stage.events("failed")[0]["reason"]
    assert "rank 1 failed again in the same way: device: " in reason and "assert" in reason


def test_kernel_that_does_not_end(make: Make):
    undisturbed, stage = make("none").trial.run(), make("hang", hang_timeout_s=HANG_S, unwind_timeout_s=UNWIND_S)
    assert differences(undisturbed, stage.trial.run()) == []
    assert [(event["rank"], event["node"]) for event in stage.events("hung")] == [(1, "n1")]
    check_only_rank_1_was_replaced(stage)
