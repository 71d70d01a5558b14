"""A pipeline loses a stage, and a script that was told things by its peers before its loop loses one of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import Results, differences

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
    tmp_path: Path, fork_server: SharedForkServer, undisturbed: Callable[[Path, str], Results]
) -> Callable[..., GatedJob]:
    """Plays a script of two nodes and a spare with `during` happening to it, and compares it bit for bit."""

    def run(script: Path, words: str, acts: str, during: Callable[[GatedJob], None], **config: object) -> GatedJob:
        settings = JobConfig(**{"nodes": 2, "spares": 1, **EVERY_STEP, **config}).checked()  # type: ignore[arg-type]
        gated = GatedJob(settings, "", acts, tmp_path, fork_server, script=script, arguments=[*STEPS, *words.split()])
        results = gated.trial.run(lambda _: during(gated))
        assert differences(undisturbed(script, words), results) == []
        return gated

    return run


def kill_node(victim: int, step: int = 4, *, warm: bool = True) -> Callable[[GatedJob], None]:
    def during(gated: GatedJob) -> None:
        if warm:
            gated.trial.await_event("rehearsed")
        gated.kill_node_at_gate(f"n{victim}", step)

    return during


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "victim"), [("1f1b", 0), ("1f1b", 1), ("interleaved", 0), ("interleaved", 1)])
def test_stage_killed_in_mid_step(perform, kind, victim):
    gated = perform(PIPELINE, f"--schedule {kind}", f"wait@4:{victim}", kill_node(victim))
    assert gated.seats()[victim] == "n2"
    assert not gated.events("dry_step_failed")
    assert not gated.events("renegotiate"), "the newcomer knows from its rehearsal what its peers have agreed on"


def test_stage_killed_in_its_first_step(perform):
    gated = perform(PIPELINE, "--schedule 1f1b", "wait@0:1", kill_node(1, step=0, warm=False))
    assert not gated.events("renegotiate"), "nobody has agreed on anything yet"


@pytest.mark.thorough
def test_without_a_rehearsal_everybody_agrees_anew(perform):
    gated = perform(PIPELINE, "--schedule interleaved --no-rehearsal", "wait@4:1", kill_node(1))
    assert gated.events("dry_step_failed")
    assert gated.events("renegotiate")


def tokens_of(gated: GatedJob, rank: int) -> list[str]:
    """Which run's configuration the rank was told, step by step as they were done."""
    lines = (gated.trial.out / f"rank{rank}.jsonl").read_text().splitlines()
    return [json.loads(line)["token"] for line in lines if "step" in line]


@pytest.mark.thorough
@pytest.mark.parametrize("victim", [0, 1])
def test_spare_is_told_what_the_lost_rank_was_told(perform, victim):
    gated = perform(TELLING, "", f"wait@4:{victim}", kill_node(victim))
    assert gated.seats()[victim] == "n2"
    assert not gated.events("dry_step_failed")
    assert len({*tokens_of(gated, 0), *tokens_of(gated, 1)}) == 1


def test_fresh_process_is_told_what_the_lost_one_was_told(perform):
    gated = perform(TELLING, "", "wait@4:1", lambda gated: gated.kill_trainer_at_gate(4), spares=0)
    assert len({*tokens_of(gated, 0), *tokens_of(gated, 1)}) == 1


@pytest.mark.thorough
def test_lost_in_the_first_step_and_lost_again_later(perform):
    """The rank's recordings are begun by one process, completed by a second one and used by a third."""

    def during(gated: GatedJob) -> None:
        kill_node(1, 0, warm=False)(gated)
        gated.await_gate(4)
        gated.kill_node_at_gate(gated.seats()[1], 4)

    gated = perform(TELLING, "", "wait@0:1 wait@4:1", during, spares=2)
    assert [bool(planned["resume"]) for planned in gated.events("planned")] == [False, True, True]
    assert len({*tokens_of(gated, 0), *tokens_of(gated, 1)}) == 1


@pytest.mark.thorough
def test_spare_forgets_what_an_earlier_start_told_it(perform):
    """Rank 0 has sent its recordings when rank 1 is lost before its loop: the job begins anew, with another token."""

    def during(gated: GatedJob) -> None:
        gated.await_gate(-1)
        gated.trial.await_true(lambda: len(list(gated.trial.out.glob("told-0-*"))) == 2, "a spare told as rank 0")
        gated.kill_node_at_gate("n1", -1, committed=False)
        kill_node(0)(gated)

    gated = perform(TELLING, "", "wait@-1:1 wait@4:0", during, spares=2)
    assert gated.events("planned")[1]["resume"] is None
    ended = [event for event in gated.events("rehearsal_ended") if event["rank"] == 0]
    # Whichever spare is more ready takes the lost rank. If it is this one, it ends for that.
    assert ended[0]["reason"] in ("its rehearsal is of an earlier start", "it has begun the script as rank 0")
    assert len({*tokens_of(gated, 0), *tokens_of(gated, 1)}) == 1
