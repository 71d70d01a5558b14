"""A fault inside of optimizer.step(closure), before it has changed anything."""

from __future__ import annotations

from pathlib import Path

from stage import EVERY_STEP, Stage, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.demo.results import differences

SCRIPT = Path(__file__).with_name("closure_script.py")


def test_survivors_keep_their_state_and_no_completed_step_is_redone(tmp_path, fork_server):
    settings = JobConfig(nodes=3, spares=0, **EVERY_STEP).checked()
    stage = Stage(settings, "", "wait@5:1", tmp_path / "job", fork_server, SCRIPT, [])
    results = stage.trial.run(lambda _: stage.kill_trainer_at_gate(5))
    reference = run_script_unprotected(SCRIPT, [], 3, tmp_path / "reference")
    assert differences(reference, results) == []
    assert len(stage.events("fault")) == 1
    assert {event["rank"] for event in stage.events("restored") if event["kept"]} == {0, 2}
    assert stage.events("planned")[-1]["lost_steps"] == 0
