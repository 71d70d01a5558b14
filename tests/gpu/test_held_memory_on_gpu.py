"""Memory that a script holds by its address is the same after a recovery: graphs and flat buffers go on working."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.demo.trial import differences

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1", reason="three ranks of NCCL have to share a GPU"
    ),
]

SCRIPT = Path(__file__).with_name("held_memory_script.py")
MID, POST = 4, 106  # in step 4 before the reduction, in step 6 behind the optimizer


@pytest.mark.parametrize("kind", ["graph", "flat"])
def test_held_memory_is_the_same_after_each_of_three_kills(kind, tmp_path, fork_server):
    settings = JobConfig(nodes=3, spares=3, **EVERY_STEP).checked()
    arguments = ["--kind", kind]
    acts = f"wait@{MID}:1 wait@{POST}:2 wait@7:0"
    gated = GatedJob(settings, "", acts, tmp_path / "job", fork_server, SCRIPT, arguments)

    def during(_: object) -> None:
        gated.trial.await_event("rehearsed")
        gated.kill_node_at_gate("n1", MID)
        gated.kill_trainer_at_gate(POST, committed=False)
        gated.kill_trainer_at_gate(7, committed=False)

    results = gated.trial.run(during)
    assert len(gated.events("fault")) == 3
    assert differences(run_script_unprotected(SCRIPT, arguments, 3, tmp_path / "reference"), results) == []
