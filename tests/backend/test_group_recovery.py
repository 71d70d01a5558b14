"""A rank is killed in mid-backward, a stand-in built alone takes its place: everything is computed as if undisturbed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from backend_child import Scenario
from backend_fleet import Outcome, run_job, start_forkserver

start_forkserver()

pytestmark = pytest.mark.e2e


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


@pytest.mark.parametrize("framework", ["plain", "ddp", "ddp-static", "ddp-unused", "fsdp2", "hsdp"])
def test_killed_in_mid_backward(framework: str, tmp_path: Path) -> None:
    outcome = run_job(Scenario(framework=framework, directory=str(tmp_path), victim=2, dies_at_step=2))
    assert outcome.resumed_at == 2
    assert_as_undisturbed(outcome, framework)
