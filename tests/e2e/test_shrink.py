"""No spare is left: the others do the work of the lost ranks, with the data that these would have seen."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gated_job import EVERY_STEP, GatedJob
from unprotected import run_ranks

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer

SCRIPT = Path(__file__).with_name("shares_script.py")
STEPS = 24


@pytest.fixture
def make_job(tmp_path: Path, fork_server: SharedForkServer) -> Callable[..., GatedJob]:
    def make(acts: str, *arguments: str, nodes: int = 4, **config: object) -> GatedJob:
        settings = {"nodes": nodes, "spares": 0, "without_spare": "shrink", **EVERY_STEP, **config}
        words = ["--steps", str(STEPS), *arguments]
        return GatedJob(JobConfig(**settings).checked(), "", acts, tmp_path / "job", fork_server, SCRIPT, words)

    return make


def seen(out: Path, world_size: int = 4) -> dict[int, list[dict[str, Any]]]:
    """By rank, what each step saw when it was done for the last time."""
    found = {}
    for rank in range(world_size):
        lines = [json.loads(line) for line in (out / f"rank{rank}.jsonl").read_text().splitlines()]
        by_step = {line["step"]: line for line in lines}
        found[rank] = [by_step[step] for step in sorted(by_step)]
    return found


def undisturbed(folder: Path, *arguments: str, world_size: int = 4) -> dict[int, list[dict[str, Any]]]:
    folder.mkdir()
    words = ["--out", str(folder / "out"), "--steps", str(STEPS), *arguments]
    variables = {"DEADPOOL_JOURNAL": str(folder / "journal")}
    run_ranks(SCRIPT, words, world_size, folder / "console.log", variables)
    return seen(folder / "out", world_size)


def assert_alike(found: dict[int, list[dict[str, Any]]], reference: dict[int, list[dict[str, Any]]], upto: int) -> None:
    """The data of every rank and step is the same; losses differ by rounding, and not at all before `upto`."""
    for rank, lines in reference.items():
        assert [line["step"] for line in found[rank]] == list(range(STEPS)), f"rank {rank}"
        assert [line["seen"] for line in found[rank]] == [line["seen"] for line in lines], f"rank {rank}"
        for mine, other in zip(found[rank], lines, strict=True):
            a, b = float.fromhex(mine["loss"]), float.fromhex(other["loss"])
            assert math.isclose(a, b, rel_tol=1e-4), (rank, mine, other)
            assert a == b or mine["step"] >= upto, (rank, mine, other)


def exact_steps(gated: GatedJob) -> int:
    """How far copies were when the first node was lost, at the gate of step 4."""
    step = int(gated.events("shrunk")[0]["step"])
    assert 0 < step <= 4
    return step


def asked(step: int, ranks: tuple[int, ...]) -> str:
    """Ranks that have processes stand in this step until the order to stop at a boundary has come."""
    return " ".join(f"asked@{step}:{rank}" for rank in ranks)


def by(found: dict[int, list[dict[str, Any]]], step: int) -> list[int]:
    """Which rank's process did each rank's share of this step."""
    return [found[rank][step]["by"] for rank in sorted(found)]


def test_two_nodes_lost_without_a_spare_and_one_returns(make_job, tmp_path):
    sgd = ("--plain-sgd", "--micro", "2")  # AdamW and clipping would hide gradients that are wrong by a factor
    gated = make_job(f"wait@4:2 wait@8:0 wait@12:1 {asked(12, (1, 3))}", *sgd)

    def during(trial):
        gated.kill_node_at_gate("n2", 4)
        gated.kill_node_at_gate("n0", 8)
        gated.await_gate(12)
        trial.job.add_node("s0", spare=True)
        gated.await_drain()  # it grows at the next boundary
        gated.open_gate(12)

    gated.trial.run(during)
    found, reference = seen(gated.trial.out), undisturbed(tmp_path / "reference", *sgd)
    shrunk, grown = gated.events("shrunk"), gated.events("grown")
    exact = exact_steps(gated)
    assert_alike(found, reference, upto=exact)
    assert by(found, exact - 1) == [0, 1, 2, 3]
    assert by(found, 4) == [0, 1, 3, 3], "the next rank with a process carries the lost one"
    assert sorted(set(by(found, 9))) == [1, 3]
    assert len(set(by(found, STEPS - 1))) == 3, "one rank has a process again"
    assert [(e["nodes"], e["of"]) for e in shrunk] == [(3, 4), (2, 4)]
    assert [(e["nodes"], e["of"]) for e in grown] == [(3, 4)]
    assert {e["inexact_from"] for e in (*shrunk, *grown)} == {shrunk[0]["step"]}
    assert journalled(gated) == {rank: [line["seen"] for line in lines] for rank, lines in found.items()}


def journalled(gated: GatedJob) -> dict[int, list[list[int]]]:
    """By rank, what was logged: each step once and in order, whichever process did it."""
    found = {}
    for rank in range(4):
        path = gated.trial.job.run_dir.journal / f"rank-{rank:05d}.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(STEPS)), f"rank {rank}"
        found[rank] = [json.loads(line["values"]["seen"]) for line in lines]
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("how", [("--plain-sgd",), ("--plain-sgd", "--micro", "2"), ()], ids=" ".join)
def test_half_of_a_replica_lost_its_other_node_becomes_a_spare(make_job, tmp_path, how):
    """HSDP, two replicas of two nodes: rank 2 cannot work without rank 3, so both are carried by the other replica."""
    gated = make_job(f"wait@4:3 wait@12:1 {asked(12, (0, 1))}", "--layout", "hsdp", *how)

    def during(trial):
        gated.kill_node_at_gate("n3", 4)
        gated.await_gate(12)
        trial.job.add_node("s0", spare=True)
        gated.await_drain()  # it grows at the next boundary
        gated.open_gate(12)

    gated.trial.run(during)
    found, reference = seen(gated.trial.out), undisturbed(tmp_path / "reference", "--layout", "hsdp", *how)
    assert_alike(found, reference, upto=exact_steps(gated))
    assert by(found, 6) == [0, 1, 0, 1]
    assert by(found, STEPS - 1) == [0, 1, 2, 3]
    assert [(e["nodes"], e["of"]) for e in gated.events("shrunk")] == [(2, 4)]
    assert [(e["nodes"], e["of"]) for e in gated.events("grown")] == [(4, 4)]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--without-shares",), "does not take its work from step.shares()"),
        (("--layout", "fsdp2"), "only DDP and HSDP can shrink"),
    ],
)
@pytest.mark.thorough
def test_job_that_cannot_shrink_waits_and_says_why(make_job, tmp_path, arguments, reason):
    gated = make_job("wait@4:1", *arguments, nodes=2)

    def during(trial):
        gated.kill_node_at_gate("n1", 4)
        trial.await_event("awaiting_spare")
        trial.job.add_node("s0", spare=True)

    gated.trial.run(during)
    (waited,) = gated.events("awaiting_spare")
    assert reason in waited["reason"]
    assert not gated.events("shrunk")
    found, reference = seen(gated.trial.out, 2), undisturbed(tmp_path / "reference", *arguments, world_size=2)
    assert_alike(found, reference, upto=STEPS)


@pytest.mark.thorough
def test_process_of_a_carrier_lost_and_the_coordinator_started_again(make_job, tmp_path):
    """What a carrier carries comes back with it, from its own node; a coordinator that knows nothing plans anew."""
    gated = make_job("wait@4:2 wait@8:0 wait@12:1 wait@16:1", nodes=3)

    def during(trial):
        gated.kill_node_at_gate("n2", 4)
        gated.kill_trainer_at_gate(8)
        gated.await_gate(12)
        os.kill(trial.job.coordinator.pid, signal.SIGKILL)
        gated.open_gate(12)
        gated.await_gate(16)
        trial.await_event("took_over")
        gated.open_gate(16)

    gated.trial.run(during)
    found, reference = seen(gated.trial.out, 3), undisturbed(tmp_path / "reference", world_size=3)
    assert_alike(found, reference, upto=exact_steps(gated))
    assert by(found, 6) == by(found, STEPS - 1) == [0, 1, 0]
