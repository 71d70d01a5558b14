"""A rank that an abort does not reach: its process ends itself, and another takes the rank from the node's memory."""

from __future__ import annotations

from pathlib import Path

from gated_job import EVERY_STEP, GatedJob, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.demo.trial import differences

SCRIPT = Path(__file__).with_name("deaf_script.py")


def test_survivor_waits_for_something_that_never_comes(tmp_path, fork_server):
    config = JobConfig(nodes=2, spares=1, unwind_timeout_s=600.0, **EVERY_STEP).checked()
    gated = GatedJob(config, "", "", tmp_path / "job", fork_server, SCRIPT, [])

    def during(_):
        deaf = gated.folder / "gates" / "deaf"
        gated.trial.await_true(deaf.exists, "the rank to be deaf")
        gated.await_committed(4)
        gated.trial.job.kill_node("n1")

    results = gated.trial.run(during)
    assert differences(run_script_unprotected(SCRIPT, [], 2, tmp_path / "reference"), results) == []
    ((rank, node, found),) = [(event["rank"], event["node"], event["found"]) for event in gated.events("hung")]
    assert (rank, node) == (0, "n0")
    assert found.startswith(("stood still inside torch", "was idle for")), "the process or its agent is first to see it"
    assert len(gated.events("fault")) == 1, "whoever ends for it is not one more fault"
    assert gated.seats() == ["n0", "n2"]
