"""Process groups that the script makes inside of its steps, and a node that dies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import differences
from deadpool.errors import JobFailed

SCRIPT = Path(__file__).with_name("groups_script.py")


@pytest.fixture
def make_gated_job(tmp_path: Path, fork_server: SharedForkServer) -> Callable[..., GatedJob]:
    def make(made_in: int, acts: str, **config: object) -> GatedJob:
        settings = JobConfig(**{"nodes": 2, "spares": 1, **EVERY_STEP, **config}).checked()
        return GatedJob(settings, "plain", acts, tmp_path / "job", fork_server, SCRIPT, ["--made-in", str(made_in)])

    return make


@pytest.mark.parametrize(
    "made_in",
    [pytest.param(-1, id="one per step"), pytest.param(0, id="one in the first step", marks=pytest.mark.thorough)],
)
def test_node_killed_while_a_group_is_made(make_gated_job, tmp_path, made_in):
    """Rank 0 waits in new_group, or in the group, for a rank that is dead."""
    gated = make_gated_job(made_in, acts="wait@4:1")

    def during(_):
        gated.trial.await_event("rehearsed")
        gated.kill_node_at_gate("n1", 4)

    results = gated.trial.run(during)
    reference = run_script_unprotected(SCRIPT, ["--made-in", str(made_in)], 2, tmp_path / "reference")
    assert differences(reference, results) == []
    assert gated.seats() == ["n0", "n2"]


@pytest.mark.parametrize(
    "step", [pytest.param(4, id="between", marks=pytest.mark.thorough), pytest.param(6, id="while it is made")]
)
def test_default_group_that_is_made_again_and_a_node_that_is_killed(tmp_path, fork_server, step):
    """The newcomer has never run the step that made it the first time: where they meet next, all know alike. A survivor
    that has none any more is replaced."""
    settings = JobConfig(nodes=2, spares=1, **EVERY_STEP).checked()
    gated = GatedJob(
        settings, "plain", f"wait@{step}:1", tmp_path / "job", fork_server, SCRIPT, ["--worlds-in", "2", "6"]
    )

    def during(_):
        gated.trial.await_event("rehearsed")
        gated.kill_node_at_gate("n1", step)

    results = gated.trial.run(during)
    reference = run_script_unprotected(SCRIPT, ["--worlds-in", "99"], 2, tmp_path / "reference")
    assert differences(reference, results) == []
    assert gated.seats() == ["n0", "n2"]
    assert not [event for event in gated.events("fault") if "script" in event["reason"]]


@pytest.mark.thorough
def test_newcomer_that_cannot_have_the_group_ends_the_job_and_names_it(make_gated_job):
    """The group was made in a step that the newcomer has neither run nor rehearsed: nobody may wait for it."""
    gated = make_gated_job(2, acts="wait@5:1", spares=2)
    with pytest.raises(JobFailed, match="code 1"):
        gated.trial.run(lambda _: gated.kill_node_at_gate("n1", 5))
    reason = gated.events("failed")[0]["reason"]
    assert "group '1' of ranks 0, 1 is not in this process" in reason
    assert "before the loop over steps" in reason
