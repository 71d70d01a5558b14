"""A rank is killed, a stand-in that was built alone takes its place: everything is computed as if undisturbed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from backend_child import Scenario
from backend_fleet import JobFailed, Outcome, RedoFailed, run_job

from deadpool.backend.torch_versions import fsdp2_accumulates_apart

pytestmark = pytest.mark.e2e

PIPELINES = ["pp-gpipe", "pp-1f1b", "pp-interleaved"]
FRAMEWORKS = ["plain", "ddp", "ddp-view", "ddp-static", "ddp-unused", "fsdp2", "hsdp", *PIPELINES]


@cache
def undisturbed(framework: str) -> Outcome:
    with TemporaryDirectory() as directory:
        return run_job(Scenario(framework=framework, directory=directory))


def assert_as_undisturbed(outcome: Outcome, framework: str) -> None:
    reference = undisturbed(framework)
    assert outcome.digests == reference.digests
    for rank, losses in outcome.losses.items():
        assert losses == {step: reference.losses[rank][step] for step in losses}
    assert outcome.exit_codes == [0, 0, 0, 0]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_killed_in_mid_backward(framework: str, tmp_path: Path) -> None:
    outcome = run_job(Scenario(framework=framework, directory=str(tmp_path), victim=2, dies_at_step=2))
    assert outcome.resumed_at == 2
    assert_as_undisturbed(outcome, framework)


@pytest.mark.parametrize("rehearse", [False, True], ids=["fresh stand-in", "rehearsed stand-in"])
@pytest.mark.parametrize("framework", ["ddp", "ddp-static", "ddp-unused", "pp-1f1b", "pp-interleaved"])
def test_killed_in_the_very_first_backward(framework: str, rehearse: bool, tmp_path: Path) -> None:
    scenario = Scenario(framework=framework, directory=str(tmp_path), victim=1, dies_at_step=0)
    outcome = run_job(scenario, rehearse=rehearse)
    assert outcome.resumed_at == 0
    assert_as_undisturbed(outcome, framework)


@pytest.mark.parametrize("victim", [0, 3])
def test_killed_before_buckets_are_laid_out_anew(victim: int, tmp_path: Path) -> None:
    """Some survivors have rank 0's order, others wait for it."""
    outcome = run_job(
        Scenario(framework="ddp", directory=str(tmp_path), victim=victim, dies_at_step=1, dies_in="forward")
    )
    assert outcome.resumed_at == 1
    assert_as_undisturbed(outcome, "ddp")


def test_rolled_back_to_before_buckets_were_laid_out_anew(tmp_path: Path) -> None:
    outcome = run_job(Scenario(framework="ddp", directory=str(tmp_path), victim=3, dies_at_step=2, resume_step=0))
    assert_as_undisturbed(outcome, "ddp")


def test_stand_in_that_has_not_rehearsed_is_refused_later_on(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="cannot start at step 2 without 1 dry steps"):
        run_job(Scenario(framework="ddp", directory=str(tmp_path), victim=3, dies_at_step=2), rehearse=False)


@pytest.mark.parametrize(
    ("framework", "omitted", "dies_at_step"),
    [
        ("plain", "gradients", 2),
        ("ddp", "ddp", 2),
        ("ddp", "ddp.seated", 0),
        ("fsdp2", "fsdp2", 2),
        pytest.param(
            *("fsdp2", "fsdp2.gradients", 2),
            marks=pytest.mark.skipif(not fsdp2_accumulates_apart(), reason="torch's own reset drops gradients"),
        ),
        ("pp-gpipe", "pipeline", 2),
        ("pp-1f1b", "pipeline", 2),
        ("pp-interleaved", "pipeline", 2),
        ("pp-1f1b", "pipeline.seated", 0),
        ("pp-1f1b", "recordings", 2),
    ],
)
def test_control_without_the_reset_it_goes_wrong(
    framework: str, omitted: str, dies_at_step: int, tmp_path: Path
) -> None:
    scenario = Scenario(
        framework=framework, directory=str(tmp_path), victim=2, dies_at_step=dies_at_step, omitted=omitted
    )
    try:
        outcome = run_job(scenario, redo_s=4)
    except RedoFailed:
        return  # raises, hangs or ends the process
    assert outcome.digests != undisturbed(framework).digests
