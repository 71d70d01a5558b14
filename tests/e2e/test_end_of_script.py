"""A script that ends right after it has destroyed its groups, in a state in which plain torch hangs for certain."""

from __future__ import annotations

from pathlib import Path

from gated_job import EVERY_STEP, GatedJob, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.demo.trial import differences

DESTROY = Path(__file__).with_name("destroy_script.py")
NODE_TIMEOUT_S = 3.0
"""An agent that waits for its turn on a busy machine must not be lost. The silence of a trainer is counted in
heartbeats, so this test lasts as long as two times 60 of them."""
DEAF_END = Path(__file__).with_name("deaf_end_script.py")


def test_groups_destroyed_at_the_end_of_main(tmp_path, fork_server):
    """In a job, and in a run that jobs are compared with."""
    reference = run_script_unprotected(DESTROY, [], 2, tmp_path / "reference")
    config = JobConfig(nodes=2, spares=0, **EVERY_STEP).checked()
    gated = GatedJob(config, "", "", tmp_path / "job", fork_server, script=DESTROY, arguments=[])
    assert differences(reference, gated.trial.run()) == []
    for rank in range(2):
        assert f"rank {rank} has destroyed its groups" in gated.trial.console()
    assert [event["reason"] for event in gated.events("completed")] == ["all ranks ended"]
    assert not gated.events("fault")


def test_rank_that_stands_still_with_pythons_lock_held(tmp_path, fork_server):
    """Nothing in the process can run, so its agent ends it. The script had destroyed its groups: it has not failed."""
    config = JobConfig(nodes=2, spares=0, node_timeout_s=NODE_TIMEOUT_S, **EVERY_STEP).checked()
    gated = GatedJob(config, "", "", tmp_path / "job", fork_server, script=DEAF_END, arguments=[])
    gated.trial.run()
    (stuck,) = gated.events("stuck_at_end")
    assert (stuck["rank"], stuck["node"], stuck["code"]) == (0, "n0", 0)
    assert "rank 0 on node n0 hung at the end of its script" in gated.trial.console()
    assert [event["reason"] for event in gated.events("completed")] == ["all ranks ended"]
    assert not gated.events("fault")
