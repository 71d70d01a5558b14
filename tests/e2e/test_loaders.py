"""Jobs that read through torchdata's StatefulDataLoader, with and without worker processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob
from torchrun import torchrun

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import Results, differences

SCRIPT = Path(__file__).with_name("loader_script.py")

KINDS = {
    "cycle": ["--cycle"],
    "cycle, workers": ["--cycle", "--workers", "2"],
    "spent": ["--cycle", "--spent"],
    "no workers": [],
    "workers": ["--workers", "2"],
    "persistent workers": ["--workers", "2", "--persistent"],
}


@pytest.fixture
def run_and_compare(tmp_path: Path, fork_server: SharedForkServer) -> Callable[..., Results]:
    def run(kind: str, during: Callable[[GatedJob], None], gate: int = 6, **config: object) -> Results:
        settings = JobConfig(**{"nodes": 2, "spares": 1, **EVERY_STEP, **config}).checked()
        gated = GatedJob(settings, "plain", f"wait@{gate}:1", tmp_path / "job", fork_server, SCRIPT, KINDS[kind])
        results = gated.trial.run(lambda _: during(gated))
        torchrun(2, tmp_path, str(SCRIPT), "--out", str(tmp_path / "reference"), *KINDS[kind])
        assert differences(Results.read(tmp_path / "reference"), results) == []
        return results

    return run


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["no workers", "workers", "persistent workers", "cycle"])
def test_node_killed_in_the_second_epoch(run_and_compare, kind):
    def during(gated: GatedJob) -> None:
        gated.trial.await_event("rehearsed")
        gated.kill_node_at_gate("n1", 6)

    run_and_compare(kind, during)


@pytest.mark.thorough
def test_trainer_killed_its_workers_live_on_for_a_moment(run_and_compare):
    """They hold its sockets and its descriptors: its death is seen all the same."""
    run_and_compare("workers", lambda gated: gated.kill_trainer_at_gate(6), spares=0)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["cycle", "cycle, workers"])
def test_trainer_killed_in_step_0_in_which_the_other_has_begun_to_read(run_and_compare, kind):
    """The survivor keeps its process, and the generator in it that is in the midst of its first epoch."""

    def during(gated: GatedJob) -> None:
        gated.trial.await_true((gated.trial.out / "taken-0-0").exists, "the survivor's first batch")
        gated.kill_trainer_at_gate(0)
        gated.trial.await_event("restored", count=2)
        assert gated.events("trainer_restarts") == []

    run_and_compare(kind, during, gate=0, spares=0)


@pytest.mark.thorough
def test_generator_that_the_exception_has_ended(run_and_compare):
    """The survivor cannot ask it for the batch again: a fresh process takes its place, with one of its own."""

    def during(gated: GatedJob) -> None:
        gated.kill_trainer_at_gate(5)
        gated.trial.await_event("trainer_restarts")
        (told,) = gated.events("trainer_restarts")
        assert "the generator cycle()" in told["reason"]

    run_and_compare("spent", during, gate=5, spares=0)
