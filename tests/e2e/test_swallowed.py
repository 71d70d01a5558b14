"""A script swallows the exception that a lost peer has caused, and ends its step before the fence has come."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from stage import EVERY_STEP, Stage, run_script_unprotected

from deadpool.config.job_config import JobConfig
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.results import differences

SCRIPT = Path(__file__).with_name("swallow_script.py")
GATE = 4


@pytest.fixture
def make_stage(tmp_path: Path, fork_server: SharedForkServer) -> Callable[[str], Stage]:
    def make(way: str) -> Stage:
        config = JobConfig(**{"nodes": 2, "spares": 1, **EVERY_STEP}).checked()
        scene = f"wait@{GATE}:0 wait@{100 + GATE}:1"
        return Stage(config, "plain", scene, tmp_path / "job", fork_server, SCRIPT, ["--way", way])

    return make


def has_ended_block(stage: Stage) -> bool:
    """The script's last line in the block of the step is in its log."""
    return f'"step": {GATE}' in (stage.trial.out / "rank0.jsonl").read_text()


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
def test_peer_that_has_completed_the_step_dies_and_the_survivor_leaves_it_out(make_stage, tmp_path, way):
    """The fence is held up by a coordinator that stands still, until the survivor's step has ended."""
    stage = make_stage(way)

    def during(_):
        stage.await_gate(GATE)
        rank_1 = stage.await_gate(100 + GATE)
        stage.await_committed(GATE)
        stage.open_gate(100 + GATE)  # rank 1 completes the step, and stands in the next one
        stage.trial.await_true(
            lambda: (stage.status()["ranks"][1].get("pushed_version") or 0) > GATE, "rank 1 stored elsewhere"
        )
        with stage.coordinator_suspended():
            os.kill(rank_1, signal.SIGKILL)
            stage.open_gate(GATE)
            stage.trial.await_true((stage.trial.out / "swallowed-0").exists, "the survivor's own way")
            stage.trial.await_true(lambda: has_ended_block(stage), "the end of the survivor's block")
            survivor = MainThread(int((stage.trial.out / "pid-0").read_text()))
            stage.trial.await_true(survivor.is_idle, "the survivor to wait for the fence")

    results = stage.trial.run(during)
    reference = run_script_unprotected(SCRIPT, ["--way", way], 2, tmp_path / "reference")
    assert differences(reference, results) == []
    assert len(stage.events("fault")) == 1
    assert stage.events("planned")[-1]["step"] == GATE, "the survivor's step did not count"
