"""Ranks that keep the others waiting on their devices, whose hosts spin meanwhile. With default settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob

from deadpool.backend.torch_versions import ProcessGroupNCCL2
from deadpool.config.job_config import JobConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1", reason="three ranks of NCCL have to share a GPU"
    ),
]

SCRIPT = Path(__file__).with_name("waits_script.py")


@pytest.fixture
def run(tmp_path, fork_server):
    def run(doing: str, steps: int) -> GatedJob:
        settings = JobConfig(nodes=3, spares=0, node_timeout_s=2.0, **{**EVERY_STEP, "hang_timeout_s": 0.0}).checked()
        arguments = ["--doing", doing, "--steps", str(steps)]
        gated = GatedJob(settings, "", "", tmp_path / "job", fork_server, SCRIPT, arguments)
        gated.trial.run(lambda _: None)
        return gated

    return run


def test_rank_that_waits_for_ever_is_found_although_the_others_spin(run):
    gated = run("wait", 40)
    (fault,) = gated.events("fault")
    if ProcessGroupNCCL2 is not None:  # its recorder does not say what a device waits for: docs/gpu.md
        assert fault["reason"].startswith("no step for")
        return
    assert fault["ranks"] == [] and "and no rank does anything; behind: ranks 1" in fault["reason"]
    ((rank, found),) = [(event["rank"], event["found"]) for event in gated.events("hung")]
    assert rank == 1 and found.startswith("was idle for")
    trainers = gated.trainers()
    assert (trainers[0], trainers[2]) == ("n0.0", "n2.0"), "the others kept their processes"


def test_rank_that_evaluates_on_its_device_is_waited_for(run):
    assert run("evaluate", 40).events("fault") == []


def test_slow_device_is_told_from_those_that_wait_for_it(run):
    found = run("be slow", 140).events("straggler")
    assert {event["rank"] for event in found} == {1}, found
