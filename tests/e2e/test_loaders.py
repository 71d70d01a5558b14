"""Jobs that read through torchdata's StatefulDataLoader, with and without worker processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from stage import EVERY_STEP, Stage
from torchrun import torchrun

from deadpool.config import JobConfig
from deadpool.control.nursery import SharedNursery
from deadpool.workload.results import Results, differences

SCRIPT = Path(__file__).with_name("loader_script.py")

KINDS = {
    "no workers": [],
    "workers": ["--workers", "2"],
    "persistent workers": ["--workers", "2", "--persistent"],
}


@pytest.fixture
def play(tmp_path: Path, nursery: SharedNursery) -> Callable[..., Results]:
    def run(kind: str, during: Callable[[Stage], None], **config: object) -> Results:
        settings = JobConfig(**{"nodes": 2, "spares": 1, **EVERY_STEP, **config}).checked()
        stage = Stage(settings, "plain", "wait@6:1", tmp_path / "job", nursery, SCRIPT, KINDS[kind])
        results = stage.trial.run(lambda _: during(stage))
        torchrun(2, tmp_path, str(SCRIPT), "--out", str(tmp_path / "reference"), *KINDS[kind])
        assert differences(Results.read(tmp_path / "reference"), results) == []
        return results

    return run


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_node_killed_in_the_second_epoch(play, kind):
    def during(stage: Stage) -> None:
        stage.trial.await_event("rehearsed")
        stage.kill_node_at_gate("n1", 6)

    play(kind, during)


def test_trainer_killed_its_workers_live_on_for_a_moment(play):
    """They hold its sockets and its descriptors: its death is seen all the same."""
    play("workers", lambda stage: stage.kill_trainer_at_gate(6), spares=0)
