"""Jobs that read through torchdata's StatefulDataLoader, with and without worker processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from stage import EVERY_STEP, Stage
from torchrun import torchrun

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.results import Results, differences

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
def play(tmp_path: Path, fork_server: SharedForkServer) -> Callable[..., Results]:
    def run(kind: str, during: Callable[[Stage], None], gate: int = 6, **config: object) -> Results:
        settings = JobConfig(**{"nodes": 2, "spares": 1, **EVERY_STEP, **config}).checked()
        stage = Stage(settings, "plain", f"wait@{gate}:1", tmp_path / "job", fork_server, SCRIPT, KINDS[kind])
        results = stage.trial.run(lambda _: during(stage))
        torchrun(2, tmp_path, str(SCRIPT), "--out", str(tmp_path / "reference"), *KINDS[kind])
        assert differences(Results.read(tmp_path / "reference"), results) == []
        return results

    return run


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["no workers", "workers", "persistent workers", "cycle"])
def test_node_killed_in_the_second_epoch(play, kind):
    def during(stage: Stage) -> None:
        stage.trial.await_event("rehearsed")
        stage.kill_node_at_gate("n1", 6)

    play(kind, during)


@pytest.mark.thorough
def test_trainer_killed_its_workers_live_on_for_a_moment(play):
    """They hold its sockets and its descriptors: its death is seen all the same."""
    play("workers", lambda stage: stage.kill_trainer_at_gate(6), spares=0)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["cycle", "cycle, workers"])
def test_trainer_killed_in_step_0_in_which_the_other_has_begun_to_read(play, kind):
    """The survivor keeps its process, and the generator in it that is in the midst of its first epoch."""

    def during(stage: Stage) -> None:
        stage.trial.await_true((stage.trial.out / "taken-0-0").exists, "the survivor's first batch")
        stage.kill_trainer_at_gate(0)
        stage.trial.await_event("restored", count=2)
        assert stage.events("trainer_restarts") == []

    play(kind, during, gate=0, spares=0)


@pytest.mark.thorough
def test_generator_that_the_exception_has_ended(play):
    """The survivor cannot ask it for the batch again: a fresh process takes its place, with one of its own."""

    def during(stage: Stage) -> None:
        stage.kill_trainer_at_gate(5)
        stage.trial.await_event("trainer_restarts")
        (told,) = stage.events("trainer_restarts")
        assert "the generator cycle()" in told["reason"]

    play("spent", during, gate=5, spares=0)
