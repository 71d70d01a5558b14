"""Context parallel and compiled fp16 steps stay exact; a graph that holds collectives is refused in words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.demo.trial import differences
from deadpool.errors import JobFailed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1", reason="four ranks of NCCL have to share a GPU"
    ),
]

SCRIPT = Path(__file__).with_name("strange_steps_script.py")
POST = 106


@pytest.mark.parametrize(("kind", "ranks"), [("cp", 4), ("scaler", 2)])
def test_node_and_rank_are_killed_and_nothing_differs(kind, ranks, tmp_path, fork_server):
    settings = JobConfig(nodes=ranks, spares=2, **EVERY_STEP).checked()
    arguments = ["--kind", kind]
    gated = GatedJob(settings, "", f"wait@4:1 wait@{POST}:0", tmp_path / "job", fork_server, SCRIPT, arguments)

    def during(_: object) -> None:
        gated.trial.await_event("rehearsed")
        gated.kill_node_at_gate("n1", 4)
        gated.kill_trainer_at_gate(POST, committed=False)

    results = gated.trial.run(during)
    assert len(gated.events("fault")) == 2
    assert differences(run_script_unprotected(SCRIPT, arguments, ranks, tmp_path / "reference"), results) == []


def test_graph_that_holds_collectives_is_refused_where_it_is_captured(tmp_path, fork_server):
    settings = JobConfig(nodes=2, **EVERY_STEP).checked()
    gated = GatedJob(settings, "", "", tmp_path / "job", fork_server, SCRIPT, ["--kind", "graph"])
    with pytest.raises(JobFailed):
        gated.trial.run(lambda _: None)
    (failed,) = gated.events("failed")
    assert "this CUDA graph holds collectives" in failed["reason"]
    assert "outside of the graph" in failed["reason"]
