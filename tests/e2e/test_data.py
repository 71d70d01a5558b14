"""Own loops that read through torch's plain DataLoader, random in any place: with faults, audited, bit-identical."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from framework_run import run_audited
from gated_job import EVERY_STEP, GatedJob
from torchrun import torchrun

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import Results, differences

SCRIPT = Path(__file__).with_name("data_script.py")
KINDS = (
    "shuffled, random collator",
    "random collator, three workers",
    "collator of its own, persistent workers",
    "spawned workers",
    "own sampler",
    "stream, permuted",
    "stream with a state",
    "stream, buffer, persistent workers",
)
Compare = Callable[..., Results]


@pytest.fixture
def run_and_compare(tmp_path: Path, fork_server: SharedForkServer) -> Compare:
    def run(kind: str, during: Callable[[GatedJob], None], gate: int, **config: object) -> Results:
        settings = JobConfig(**{"nodes": 2, "spares": 1, **EVERY_STEP, **config}).checked()
        gated = GatedJob(settings, "plain", f"wait@{gate}:1", tmp_path / "job", fork_server, SCRIPT, ["--kind", kind])
        results = gated.trial.run(lambda _: during(gated))
        torchrun(2, tmp_path, str(SCRIPT), "--out", str(tmp_path / "reference"), "--kind", kind)
        assert differences(Results.read(tmp_path / "reference"), results) == []
        return results

    return run


def _kill_node(gated: GatedJob) -> None:
    """In the second epoch. A process that has rehearsed takes the rank."""
    gated.trial.await_event("rehearsed")
    gated.kill_node_at_gate("n1", 6)


def test_a_node_is_lost_and_the_collator_is_random(run_and_compare):
    run_and_compare("shuffled, random collator", _kill_node, 6)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_node_is_lost(run_and_compare, kind):
    run_and_compare(kind, _kill_node, 6)


@pytest.mark.thorough
@pytest.mark.parametrize("gate", [0, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_trainer_is_lost_where_an_epoch_begins(run_and_compare, kind, gate):
    """The other one keeps its process, its iterator and its workers."""

    def during(gated: GatedJob) -> None:
        gated.kill_trainer_at_gate(gate)
        gated.trial.await_event("restored", count=2)
        assert gated.events("trainer_restarts") == []

    run_and_compare(kind, during, gate, spares=0)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_the_audit_finds_nothing(tmp_path, fork_server, kind):
    arguments = ["--kind", kind]
    disturbed, verdict = run_audited(SCRIPT, tmp_path, fork_server, "at=backward step=7 node=n1", arguments)
    torchrun(2, tmp_path, str(SCRIPT), "--out", str(tmp_path / "reference"), *arguments)
    assert verdict == "exact"
    assert differences(Results.read(tmp_path / "reference"), disturbed) == []
