"""What every rank logs is delivered once, in order and without gaps, whoever dies and whenever."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob
from unprotected import run_ranks

from deadpool.cli.job_client import ask
from deadpool.config.job_config import JobConfig
from deadpool.errors import JobFailed

SCRIPT = Path(__file__).with_name("journal_script.py")
STEPS = 8


@pytest.fixture
def make_job(tmp_path, fork_server):
    def make(acts: str = "", *arguments: str, gate: str = "", steps: int = STEPS, **config: object) -> GatedJob:
        settings = {"nodes": 2, "spares": 1, **EVERY_STEP, **config}
        gated = GatedJob(
            JobConfig(**settings).checked(),
            "",
            acts,
            tmp_path / "job",
            fork_server,
            SCRIPT,
            ["--steps", str(steps), *arguments],
        )
        gated.trial.job.environment["E2E_SINK"] = gate
        return gated

    return make


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def journal(gated: GatedJob, rank: int) -> list[dict]:
    return lines(gated.trial.job.run_dir.journal / f"rank-{rank:05d}.jsonl")


def assert_exactly_once(gated: GatedJob, steps: int = STEPS) -> None:
    """And with the losses that the script saw when it did the step for the last time."""
    losses = gated.trial.results().losses
    for rank in range(2):
        found = journal(gated, rank)
        assert [line["step"] for line in found] == list(range(steps)), f"rank {rank}"
        assert {line["rank"] for line in found} == {rank} and len({line["run"] for line in found}) == 1
        assert {line["step"]: line["values"]["hex"] for line in found} == losses[rank]
        assert all(line["values"]["loss"].hex() == line["values"]["hex"] for line in found)


def run(gated: GatedJob, during=None) -> None:
    gated.trial.run(lambda _: during() if during is not None else None)


def finals(gated: GatedJob, rank: int) -> list[dict]:
    return lines(gated.trial.out / f"final-rank{rank}.jsonl")


# --- job.on_final ----------------------------------------------------------------------------------------------------


def test_what_a_dry_step_registers_never_runs_and_what_a_dead_rank_had_is_told(make_job):
    """The spare has rehearsed both ranks, so the one that takes over has done a dry step."""
    gated = make_job("wait@4:1", "--final", rehearsals=2)

    def during():
        gated.trial.await_event("rehearsed", count=2)
        gated.kill_node_at_gate("n1", 4)  # when version 4 is committed: else step 3 is done again, and its action runs

    run(gated, during)
    assert [note for rank in range(2) for note in finals(gated, rank) if note["dry"]] == []
    assert [note["step"] for note in finals(gated, 0)] == list(range(STEPS)), "a survivor's run once each"
    (lost,) = gated.events("actions_lost")
    missing = sorted(set(range(STEPS)) - {note["step"] for note in finals(gated, 1)})
    assert lost["rank"] == 1 and 3 in missing, "at this gate step 3 always waits"
    assert set(missing) <= set(lost["steps"])
    assert "actions in job.on_final for step" in gated.trial.console()


# --- job.log ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_node_killed_in_mid_step(make_job):
    gated = make_job("wait@4:1")

    def during():
        gated.await_gate(4)
        gated.trial.await_event("rehearsed")
        gated.kill_node_at_gate("n1", 4)

    run(gated, during)
    assert_exactly_once(gated)
    assert len({line["values"]["nested"]["pid"] for line in journal(gated, 1)}) == 2, "two processes logged it"


@pytest.mark.thorough
def test_trainer_killed_and_a_fresh_process_takes_the_rank(make_job):
    gated = make_job("wait@4:1", spares=0)
    run(gated, lambda: gated.kill_trainer_at_gate(4))
    assert_exactly_once(gated)


@pytest.mark.thorough
@pytest.mark.parametrize("in_place", ["always", "never"])
def test_ranks_roll_back_several_steps(make_job, in_place):
    """Only version 3 can be come back to: steps 3 to 5 are done again by everybody, and are logged once."""
    gated = make_job("wait@3:1 wait@5:1", capture_every=3, in_place=in_place)

    def during():
        gated.open_committed_gate(3)
        gated.await_gate(5)
        gated.kill_node_at_gate("n1", 5, committed=False)  # version 5 is none that is captured

    run(gated, during)
    assert gated.trial.results().steps_done_again() >= 2
    assert_exactly_once(gated)


@pytest.mark.parametrize("moment", ["before", pytest.param("after", marks=pytest.mark.thorough)])
def test_rank_killed_between_finality_its_line_and_its_memory_of_it(make_job, moment):
    """Before: step 3 is final and not written. After: it is written, and no record knows."""
    gated = make_job("wait@6:0", "--sink", "gated", gate=f"{moment}@3:1")

    def during():
        os.kill(await_sink(gated), signal.SIGKILL)
        written = [line["step"] for line in journal(gated, 1)]
        assert (3 in written) == (moment == "after")
        gated.open_gate("sink")
        gated.open_gate(6)

    run(gated, during)
    assert_exactly_once(gated)


def await_sink(gated: GatedJob) -> int:
    return gated.await_gate("sink")


@pytest.mark.thorough
def test_node_stopped_while_it_writes_wakes_up_when_another_has_its_rank(make_job):
    gated = make_job("wait@5:0 wait@7:0", "--sink", "gated", gate="before@3:1")

    def during():
        await_sink(gated)
        node = gated.trial.job.nodes["n1"].pid
        os.killpg(node, signal.SIGSTOP)
        gated.open_gate("sink")
        gated.open_gate(5)
        gated.await_gate(7)
        gated.trial.await_true(lambda: len(journal(gated, 1)) >= 5, "the newcomer's lines")
        os.killpg(node, signal.SIGCONT)
        gated.trial.await_true(lambda: gated.trial.job.nodes["n1"].poll() is not None or returned(gated), "n1")
        gated.open_gate(7)

    run(gated, during)
    assert gated.seats() == ["n0", "n2"]
    assert_exactly_once(gated)


def returned(gated: GatedJob) -> bool:
    return any(node["node"] == "n1" for node in gated.status()["nodes"])


@pytest.mark.thorough
def test_node_drained(make_job):
    gated = make_job("wait@3:1 asked@3:0 asked@3:1 wait@6:0")

    def during():
        gated.await_gate(3)
        ask(gated.trial.job.run_dir, "drain", node="n1")
        gated.await_drain()
        gated.open_gate(3)
        gated.await_gate(6)
        gated.trial.await_event("left")
        gated.open_gate(6)

    run(gated, during)
    assert gated.seats() == ["n0", "n2"]
    assert_exactly_once(gated)


@pytest.mark.thorough
def test_coordinator_killed_and_then_a_node(make_job):
    gated = make_job("wait@3:1 wait@6:1")

    def during():
        gated.await_gate(3)
        gated.trial.await_event("rehearsed")
        os.kill(gated.trial.job.coordinator.pid, signal.SIGKILL)
        gated.open_gate(3)
        gated.trial.await_event("took_over")
        gated.kill_node_at_gate("n1", 6)

    run(gated, during)
    assert_exactly_once(gated)


@pytest.mark.thorough
def test_disk_that_is_full_for_a_while_and_a_kill_meanwhile(make_job):
    gated = make_job("wait@4:1 wait@6:1", "--sink", "full")

    def during():
        gated.trial.await_event("journal_failed", count=2)
        gated.kill_node_at_gate("n1", 4)
        gated.await_gate(6)
        assert journal(gated, 0) == journal(gated, 1) == []
        (gated.folder / "gates" / "room").touch()
        gated.open_gate(6)

    run(gated, during)
    assert_exactly_once(gated)
    assert "No space left" in gated.events("journal_failed")[0]["reason"]
    assert len(gated.events("journal_failed")) <= 3, "once per process, not once per step"


@pytest.mark.thorough
def test_script_fails_and_what_is_final_is_there(make_job):
    gated = make_job("wait@4:0 raise@5:1", spares=0)

    def during(_):
        gated.open_committed_gate(4)

    with pytest.raises(JobFailed, match="code 1"):
        gated.trial.run(during)
    for rank in range(2):
        steps = [line["step"] for line in journal(gated, rank)]
        assert steps == list(range(len(steps))) and len(steps) >= 4


@pytest.mark.thorough
def test_loop_that_is_left_early_is_delivered_to_its_end(make_job):
    gated = make_job("", "--stop", "5", spares=0)
    run(gated)
    assert_exactly_once(gated, steps=5)


@pytest.mark.thorough
def test_ranks_that_share_a_file(make_job):
    gated = make_job("wait@4:1", "--sink", "shared")
    run(gated, lambda: gated.kill_node_at_gate("n1", 4))
    found = lines(gated.trial.out / "all.jsonl")
    for rank in range(2):
        assert [line["step"] for line in found if line["rank"] == rank] == list(range(STEPS))


# --- other sinks -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_tensorboard_through_a_kill(make_job):
    pytest.importorskip("tensorboard", reason="needs the package tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    gated = make_job("wait@4:1", "--sink", "tensorboard")
    run(gated, lambda: gated.kill_node_at_gate("n1", 4))
    for rank in range(2):
        folder = EventAccumulator(str(gated.trial.out / "tensorboard" / f"rank{rank}"))
        folder.Reload()
        assert sorted(folder.Tags()["scalars"]) == ["loss", "nested/pid", "nested/rank"]
        scalars = folder.Scalars("loss")
        assert [scalar.step for scalar in scalars] == list(range(STEPS))
        assert {scalar.step: scalar.value.hex() for scalar in scalars} == gated.trial.results().losses[rank]


@pytest.mark.thorough
def test_wandb_offline_through_a_kill(make_job):
    pytest.importorskip("wandb", reason="needs the package wandb")
    gated = make_job("wait@4:1", "--sink", "wandb")
    run(gated, lambda: gated.kill_node_at_gate("n1", 4))
    for rank in range(2):
        rows = wandb_rows(gated.trial.out / "wandb", f"run{rank}")
        assert [row["_step"] for row in rows] == list(range(STEPS))
        assert {row["_step"]: float(row["loss"]).hex() for row in rows} == gated.trial.results().losses[rank]


def wandb_rows(folder: Path, name: str) -> list[dict]:
    """All rows of a run, in the order of its files."""
    from wandb.proto.wandb_internal_pb2 import Record

    from deadpool.journal.trackers import HistoryFile

    rows = []
    for path in sorted(folder.glob(f"wandb/offline-run-*-{name}/run-{name}.wandb")):
        for data in HistoryFile(path)._records(path.read_bytes()[7:]):
            record = Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows


def test_the_same_script_without_deadpool(tmp_path):
    out, folder = tmp_path / "out", tmp_path / "journal"
    variables = {"DEADPOOL_JOURNAL": str(folder)}
    run_ranks(SCRIPT, ["--out", str(out), "--steps", "4"], 2, tmp_path / "console.log", variables)
    for rank in range(2):
        losses = {line["step"]: line["loss"] for line in lines(out / f"rank{rank}.jsonl") if "step" in line}
        found = lines(folder / f"rank-{rank:05d}.jsonl")
        assert [line["step"] for line in found] == [0, 1, 2, 3]
        assert {line["step"]: line["values"]["hex"] for line in found} == losses
