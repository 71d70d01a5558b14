"""A fault inside of optimizer.step(closure), before it has changed anything."""

from __future__ import annotations

from pathlib import Path

from gated_job import EVERY_STEP, GatedJob, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.demo.trial import differences

SCRIPT = Path(__file__).with_name("closure_script.py")


def test_survivors_keep_their_state_and_no_completed_step_is_redone(tmp_path, fork_server):
    settings = JobConfig(nodes=3, spares=0, **EVERY_STEP).checked()
    gated = GatedJob(settings, "", "wait@5:1", tmp_path / "job", fork_server, SCRIPT, [])
    results = gated.trial.run(lambda _: gated.kill_trainer_at_gate(5))
    reference = run_script_unprotected(SCRIPT, [], 3, tmp_path / "reference")
    assert differences(reference, results) == []
    assert len(gated.events("fault")) == 1
    assert {event["rank"] for event in gated.events("restored") if event["kept"]} == {0, 2}
    assert gated.events("planned")[-1]["lost_steps"] == 0
