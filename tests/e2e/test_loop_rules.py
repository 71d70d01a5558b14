"""A loop that would not be protected, or would never end, is refused, with DeadPool around it and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.errors import JobFailed

SCRIPT = Path(__file__).with_name("loop_rules_script.py")
REFUSED = {
    "twice": "job.steps() was called a second time",
    "bare": "step 0 was never entered: put the whole body of the loop into `with step:`",
    "continue": "step 1 was never entered: put the whole body of the loop into `with step:`",
}


@pytest.fixture
def make_gated_job(tmp_path: Path, fork_server: SharedForkServer) -> Callable[..., GatedJob]:
    def make(what: str, acts: str = "", spares: int = 0) -> GatedJob:
        settings = JobConfig(nodes=2, spares=spares, **EVERY_STEP).checked()
        return GatedJob(settings, "", acts, tmp_path / "job", fork_server, script=SCRIPT, arguments=["--what", what])

    return make


@pytest.mark.parametrize(
    "what", ["bare", *(pytest.param(w, marks=pytest.mark.thorough) for w in ("continue", "twice"))]
)
def test_loop_is_refused(make_gated_job, what):
    gated = make_gated_job(what)
    with pytest.raises(JobFailed, match="code 1"):
        gated.trial.run()
    said = "".join(path.read_text() for path in gated.trial.job.run_dir.logs.glob("*.log"))
    assert REFUSED[what] in said
    if what != "twice":  # then every rank was released before
        assert REFUSED[what] in gated.events("failed")[0]["reason"]


@pytest.mark.parametrize("what", REFUSED)
def test_loop_is_refused_without_deadpool_too(tmp_path, what):
    with pytest.raises(AssertionError) as failure:
        run_script_unprotected(SCRIPT, ["--what", what], 2, tmp_path / "unprotected")
    assert REFUSED[what] in str(failure.value)


@pytest.mark.thorough
def test_script_may_leave_out_the_steps_of_a_rehearsal(make_gated_job):
    gated = make_gated_job("skips", "wait@2:1", spares=1)

    def during(_):
        gated.trial.await_event("rehearsed")
        gated.kill_node_at_gate("n1", 2)

    gated.trial.run(during)
    assert gated.seats() == ["n0", "n2"]
