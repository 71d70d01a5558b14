"""A loop that is left early ends there whoever dies afterwards, also while the script decides whether to leave it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from stage import EVERY_STEP, Stage, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.results import differences

SCRIPT = Path(__file__).with_name("left_loop_script.py")
LAST, STEPS = 4, 8
HANG_S = 20.0  # far longer than a step takes, also on a machine that is slow and busy
AFTER_LOOP, IN_EVALUATION = 100, 50  # see left_loop_script.py


@pytest.fixture
def make_stage(tmp_path: Path, fork_server: SharedForkServer) -> Callable[..., Stage]:
    def make(way: str, scene: str, **config: object) -> Stage:
        settings = JobConfig(**{"nodes": 2, "spares": 1, **EVERY_STEP, **config}).checked()
        return Stage(settings, "", scene, tmp_path / "job", fork_server, script=SCRIPT, arguments=["--way", way])

    return make


def assert_ends_as_undisturbed(stage: Stage, way: str, folder: Path, during: Callable[[], None]) -> None:
    reference = run_script_unprotected(SCRIPT, ["--way", way], 2, folder / "reference")
    assert set(reference.losses[0]) == set(range(LAST + 1))
    results = stage.trial.run(lambda _: during())
    assert differences(reference, results) == []
    assert stage.events("fault")
    for rank in range(2):
        path = stage.trial.job.run_dir.journal / f"rank-{rank:05d}.jsonl"
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == list(range(LAST + 1))


@pytest.mark.parametrize(
    "way", [*(pytest.param(way, marks=pytest.mark.thorough) for way in ("break", "block", "exit")), "held"]
)
def test_trainer_dies_after_the_loop_was_left(make_stage, tmp_path, way):
    stage = make_stage(way, f"wait@{AFTER_LOOP + 1}:1", spares=0)
    assert_ends_as_undisturbed(
        stage, way, tmp_path, partial(stage.kill_trainer_at_gate, AFTER_LOOP + 1, committed=False)
    )


def test_node_dies_after_the_loop_was_left(make_stage, tmp_path):
    stage = make_stage("break", f"wait@{AFTER_LOOP + 1}:1")
    during = partial(stage.kill_node_at_gate, "n1", AFTER_LOOP + 1, committed=False)
    assert_ends_as_undisturbed(stage, "break", tmp_path, during)


@pytest.mark.thorough
def test_all_trainers_die_after_the_loop_was_left(make_stage, tmp_path):
    """Not even a process is left that knew of it."""
    stage = make_stage("break", f"wait@{AFTER_LOOP}:0 wait@{AFTER_LOOP + 1}:1", spares=0)

    def during() -> None:
        for pid in [stage.await_gate(AFTER_LOOP + rank) for rank in range(2)]:
            os.kill(pid, signal.SIGKILL)
        for rank in range(2):
            stage.open_gate(AFTER_LOOP + rank)

    assert_ends_as_undisturbed(stage, "break", tmp_path, during)


@pytest.mark.thorough
def test_trainer_dies_in_the_evaluation_that_ends_the_loop(make_stage, tmp_path):
    at = IN_EVALUATION + LAST
    stage = make_stage("evaluation", f"wait@{at}:1", spares=0)
    during = partial(stage.kill_trainer_at_gate, at, committed=False)
    assert_ends_as_undisturbed(stage, "evaluation", tmp_path, during)


@pytest.mark.thorough
def test_node_dies_in_an_evaluation_that_draws_random_numbers(make_stage, tmp_path):
    at = IN_EVALUATION + LAST - 2
    stage = make_stage("evaluation", f"wait@{at}:1")
    during = partial(stage.kill_node_at_gate, "n1", at, committed=False)
    assert_ends_as_undisturbed(stage, "evaluation", tmp_path, during)


def test_rehearsal_that_leaves_its_loop_does_nothing_after_it(make_stage):
    """Its dry step's loss is garbage, and the script believed it."""
    stage = make_stage("garbage", f"wait@{AFTER_LOOP}:0")

    def during(_):
        stage.trial.await_event("trainer_lost")
        stage.await_gate(AFTER_LOOP)
        stage.open_gate(AFTER_LOOP)

    stage.trial.run(during)
    assert "left its loop in dry step 0" in stage.events("trainer_lost")[0]["reason"]
    assert len(list(stage.trial.out.glob("saved-by-*"))) == 2, "one for each rank"


def test_rank_that_leaves_alone_is_found_to_be_waited_for(make_stage):
    """Its script is over, so it pauses no more, and the other rank waits for a collective that never comes."""
    stage = make_stage("alone", "", spares=0, hang_timeout_s=HANG_S)
    results = stage.trial.run()
    (fault,) = stage.events("fault")
    assert fault["ranks"] == []
    assert [set(results.losses[rank]) for rank in range(2)] == [set(range(STEPS))] * 2
