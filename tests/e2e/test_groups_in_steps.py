"""Process groups that the script makes inside of its steps, and a node that dies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from stage import EVERY_STEP, Stage, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.results import differences
from deadpool.errors import JobFailed

SCRIPT = Path(__file__).with_name("groups_script.py")


@pytest.fixture
def make_stage(tmp_path: Path, fork_server: SharedForkServer) -> Callable[..., Stage]:
    def make(made_in: int, scene: str, **config: object) -> Stage:
        settings = JobConfig(**{"nodes": 2, "spares": 1, **EVERY_STEP, **config}).checked()
        return Stage(settings, "plain", scene, tmp_path / "job", fork_server, SCRIPT, ["--made-in", str(made_in)])

    return make


@pytest.mark.parametrize(
    "made_in",
    [pytest.param(-1, id="one per step"), pytest.param(0, id="one in the first step", marks=pytest.mark.thorough)],
)
def test_node_killed_while_a_group_is_made(make_stage, tmp_path, made_in):
    """Rank 0 waits in new_group, or in the group, for a rank that is dead."""
    stage = make_stage(made_in, scene="wait@4:1")

    def during(_):
        stage.trial.await_event("rehearsed")
        stage.kill_node_at_gate("n1", 4)

    results = stage.trial.run(during)
    reference = run_script_unprotected(SCRIPT, ["--made-in", str(made_in)], 2, tmp_path / "reference")
    assert differences(reference, results) == []
    assert stage.seats() == ["n0", "n2"]


@pytest.mark.parametrize(
    "step", [pytest.param(4, id="between", marks=pytest.mark.thorough), pytest.param(6, id="while it is made")]
)
def test_default_group_that_is_made_again_and_a_node_that_is_killed(tmp_path, fork_server, step):
    """The newcomer has never run the step that made it the first time: where they meet next, all know alike. A survivor
    that has none any more is replaced."""
    settings = JobConfig(nodes=2, spares=1, **EVERY_STEP).checked()
    stage = Stage(settings, "plain", f"wait@{step}:1", tmp_path / "job", fork_server, SCRIPT, ["--worlds-in", "2", "6"])

    def during(_):
        stage.trial.await_event("rehearsed")
        stage.kill_node_at_gate("n1", step)

    results = stage.trial.run(during)
    reference = run_script_unprotected(SCRIPT, ["--worlds-in", "99"], 2, tmp_path / "reference")
    assert differences(reference, results) == []
    assert stage.seats() == ["n0", "n2"]
    assert not [event for event in stage.events("fault") if "script" in event["reason"]]


@pytest.mark.thorough
def test_newcomer_that_cannot_have_the_group_ends_the_job_and_names_it(make_stage):
    """The group was made in a step that the newcomer has neither run nor rehearsed: nobody may wait for it."""
    stage = make_stage(2, scene="wait@5:1", spares=2)
    with pytest.raises(JobFailed, match="code 1"):
        stage.trial.run(lambda _: stage.kill_node_at_gate("n1", 5))
    reason = stage.events("failed")[0]["reason"]
    assert "group '1' of ranks 0, 1 is not in this process" in reason
    assert "before the loop over steps" in reason
