"""A script swallows the exception that a lost peer has caused, and ends its step before the fence has come."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from gated_job import EVERY_STEP, GatedJob, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import differences

SCRIPT = Path(__file__).with_name("swallow_script.py")
GATE = 4


@pytest.fixture
def make_gated_job(tmp_path: Path, fork_server: SharedForkServer) -> Callable[[str], GatedJob]:
    def make(way: str) -> GatedJob:
        config = JobConfig(**{"nodes": 2, "spares": 1, **EVERY_STEP}).checked()
        acts = f"wait@{GATE}:0 wait@{100 + GATE}:1"
        return GatedJob(config, "plain", acts, tmp_path / "job", fork_server, SCRIPT, ["--way", way])

    return make


def has_ended_block(gated: GatedJob) -> bool:
    """The script's last line in the block of the step is in its log."""
    return f'"step": {GATE}' in (gated.trial.out / "rank0.jsonl").read_text()


class MainThread:
    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/task/{pid}/stat")
        self._used: list[str] = []

    def is_idle(self) -> bool:
        """It is asleep and has used no CPU time since the last call."""
        fields = self._stat.read_text().rpartition(")")[2].split()
        before, self._used = self._used, fields[11:13]
        return fields[0] == "S" and self._used == before


@pytest.mark.parametrize(
    "way",
    [
        "exception",
        "anything",
        *(pytest.param(way, marks=pytest.mark.thorough) for way in ("suppression", "trying again")),
    ],
)
def test_peer_that_has_completed_the_step_dies_and_the_survivor_leaves_it_out(make_gated_job, tmp_path, way):
    """The fence is held up by a coordinator that stands still, until the survivor's step has ended."""
    gated = make_gated_job(way)

    def during(_):
        gated.await_gate(GATE)
        rank_1 = gated.await_gate(100 + GATE)
        gated.await_committed(GATE)
        gated.open_gate(100 + GATE)  # rank 1 completes the step, and stands in the next one
        gated.trial.await_true(
            lambda: (gated.status()["ranks"][1].get("pushed_version") or 0) > GATE, "rank 1 stored elsewhere"
        )
        with gated.coordinator_suspended():
            os.kill(rank_1, signal.SIGKILL)
            gated.open_gate(GATE)
            gated.trial.await_true((gated.trial.out / "swallowed-0").exists, "the survivor's own way")
            gated.trial.await_true(lambda: has_ended_block(gated), "the end of the survivor's block")
            survivor = MainThread(int((gated.trial.out / "pid-0").read_text()))
            gated.trial.await_true(survivor.is_idle, "the survivor to wait for the fence")

    results = gated.trial.run(during)
    reference = run_script_unprotected(SCRIPT, ["--way", way], 2, tmp_path / "reference")
    assert differences(reference, results) == []
    assert len(gated.events("fault")) == 1
    assert gated.events("planned")[-1]["step"] == GATE, "the survivor's step did not count"
