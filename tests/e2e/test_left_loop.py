"""A loop that is left early ends there whoever dies afterwards, also while the script decides whether to leave it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import differences

SCRIPT = Path(__file__).with_name("left_loop_script.py")
LAST, STEPS = 4, 8
HANG_S = 20.0  # far longer than a step takes, also on a machine that is slow and busy
AFTER_LOOP, IN_EVALUATION = 100, 50  # see left_loop_script.py


@pytest.fixture
def make_gated_job(tmp_path: Path, fork_server: SharedForkServer) -> Callable[..., GatedJob]:
    def make(way: str, acts: str, **config: object) -> GatedJob:
        settings = JobConfig(**{"nodes": 2, "spares": 1, **EVERY_STEP, **config}).checked()
        return GatedJob(settings, "", acts, tmp_path / "job", fork_server, script=SCRIPT, arguments=["--way", way])

    return make


def assert_ends_as_undisturbed(gated: GatedJob, way: str, folder: Path, during: Callable[[], None]) -> None:
    reference = run_script_unprotected(SCRIPT, ["--way", way], 2, folder / "reference")
    assert set(reference.losses[0]) == set(range(LAST + 1))
    results = gated.trial.run(lambda _: during())
    assert differences(reference, results) == []
    assert gated.events("fault")
    for rank in range(2):
        path = gated.trial.job.run_dir.journal / f"rank-{rank:05d}.jsonl"
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == list(range(LAST + 1))


@pytest.mark.parametrize(
    "way", [*(pytest.param(way, marks=pytest.mark.thorough) for way in ("break", "block", "exit")), "held"]
)
def test_trainer_dies_after_the_loop_was_left(make_gated_job, tmp_path, way):
    gated = make_gated_job(way, f"wait@{AFTER_LOOP + 1}:1", spares=0)
    assert_ends_as_undisturbed(
        gated, way, tmp_path, partial(gated.kill_trainer_at_gate, AFTER_LOOP + 1, committed=False)
    )


def test_node_dies_after_the_loop_was_left(make_gated_job, tmp_path):
    gated = make_gated_job("break", f"wait@{AFTER_LOOP + 1}:1")
    during = partial(gated.kill_node_at_gate, "n1", AFTER_LOOP + 1, committed=False)
    assert_ends_as_undisturbed(gated, "break", tmp_path, during)


@pytest.mark.thorough
def test_all_trainers_die_after_the_loop_was_left(make_gated_job, tmp_path):
    """Not even a process is left that knew of it."""
    gated = make_gated_job("break", f"wait@{AFTER_LOOP}:0 wait@{AFTER_LOOP + 1}:1", spares=0)

    def during() -> None:
        for pid in [gated.await_gate(AFTER_LOOP + rank) for rank in range(2)]:
            os.kill(pid, signal.SIGKILL)
        for rank in range(2):
            gated.open_gate(AFTER_LOOP + rank)

    assert_ends_as_undisturbed(gated, "break", tmp_path, during)


@pytest.mark.thorough
def test_trainer_dies_in_the_evaluation_that_ends_the_loop(make_gated_job, tmp_path):
    at = IN_EVALUATION + LAST
    gated = make_gated_job("evaluation", f"wait@{at}:1", spares=0)
    during = partial(gated.kill_trainer_at_gate, at, committed=False)
    assert_ends_as_undisturbed(gated, "evaluation", tmp_path, during)


@pytest.mark.thorough
def test_node_dies_in_an_evaluation_that_draws_random_numbers(make_gated_job, tmp_path):
    at = IN_EVALUATION + LAST - 2
    gated = make_gated_job("evaluation", f"wait@{at}:1")
    during = partial(gated.kill_node_at_gate, "n1", at, committed=False)
    assert_ends_as_undisturbed(gated, "evaluation", tmp_path, during)


def test_rehearsal_that_leaves_its_loop_does_nothing_after_it(make_gated_job):
    """Its dry step's loss is garbage, and the script believed it."""
    gated = make_gated_job("garbage", f"wait@{AFTER_LOOP}:0")

    def during(_):
        gated.trial.await_event("trainer_lost")
        gated.await_gate(AFTER_LOOP)
        gated.open_gate(AFTER_LOOP)

    gated.trial.run(during)
    assert "left its loop in dry step 0" in gated.events("trainer_lost")[0]["reason"]
    assert len(list(gated.trial.out.glob("saved-by-*"))) == 2, "one for each rank"


def test_rank_that_leaves_alone_is_found_to_be_waited_for(make_gated_job):
    """Its script is over, so it pauses no more, and the other rank waits for a collective that never comes."""
    gated = make_gated_job("alone", "", spares=0, hang_timeout_s=HANG_S)
    results = gated.trial.run()
    (fault,) = gated.events("fault")
    assert fault["ranks"] == []
    assert [set(results.losses[rank]) for rank in range(2)] == [set(range(STEPS))] * 2
