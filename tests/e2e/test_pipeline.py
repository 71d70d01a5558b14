"""A pipeline loses a stage, and a script that was told things by its peers before its loop loses one of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from stage import Stage, run_script_unprotected

from deadpool.config import JobConfig
from deadpool.control.nursery import SharedNursery
from deadpool.workload.results import Results, differences

PIPELINE = Path(__file__).with_name("pipeline_script.py")
TELLING = Path(__file__).with_name("telling_script.py")
STEPS = ["--steps", "8"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, str], Results]:
    known: dict[tuple[Path, str], Results] = {}

    def get(script: Path, words: str) -> Results:
        if (script, words) not in known:
            folder = tmp_path_factory.mktemp("undisturbed") / "run"
            known[script, words] = run_script_unprotected(script, [*STEPS, *words.split()], 2, folder)
        return known[script, words]

    return get


@pytest.fixture
def perform(
    tmp_path: Path, nursery: SharedNursery, undisturbed: Callable[[Path, str], Results]
) -> Callable[..., Stage]:
    """Plays a script of two nodes and a spare with `during` happening to it, and compares it bit for bit."""

    def run(script: Path, words: str, scene: str, during: Callable[[Stage], None], **config: object) -> Stage:
        settings = JobConfig(**{"nodes": 2, "spares": 1, **config}).checked()  # type: ignore[arg-type]
        stage = Stage(settings, "", scene, tmp_path, nursery, script=script, arguments=[*STEPS, *words.split()])
        results = stage.trial.run(lambda _: during(stage))
        assert differences(undisturbed(script, words), results) == []
        return stage

    return run


def kill_node(victim: int, step: int = 4, *, warm: bool = True) -> Callable[[Stage], None]:
    def during(stage: Stage) -> None:
        stage.await_gate(step)
        if warm:
            stage.trial.await_event("rehearsed")
        stage.kill_node_at_gate(f"n{victim}", step)

    return during


@pytest.mark.parametrize(("kind", "victim"), [("1f1b", 0), ("1f1b", 1), ("interleaved", 0), ("interleaved", 1)])
def test_stage_killed_in_mid_step(perform, kind, victim):
    stage = perform(PIPELINE, f"--schedule {kind}", f"wait@4:{victim}", kill_node(victim))
    assert stage.seats()[victim] == "n2"
    assert not stage.events("dry_step_failed")
    assert not stage.events("renegotiate"), "the newcomer knows from its rehearsal what its peers have agreed on"


def test_stage_killed_in_its_first_step(perform):
    stage = perform(PIPELINE, "--schedule 1f1b", "wait@0:1", kill_node(1, step=0, warm=False))
    assert not stage.events("renegotiate"), "nobody has agreed on anything yet"
