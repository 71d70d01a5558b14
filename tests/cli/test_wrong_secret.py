"""A node whose secret is not the job's: it says so at once, and the coordinator says the same."""

from __future__ import annotations

import os
import subprocess
from typing import Any

from command import COMMAND, WAITING_SCRIPT, started
from waiting import wait_until

from deadpool.control.launch.run_dir import RunDir
from deadpool.events.event import read_events


def refusals(run_dir: RunDir) -> list[dict[str, Any]]:
    return [event for event in read_events(run_dir.events) if event["what"] == "connection_refused"]


def test_both_sides_name_the_secret(tmp_path):
    run_dir, said = RunDir(tmp_path / "run"), tmp_path / "said"
    with started("coordinator", "--nodes", 1, "--run-dir", run_dir.path, output=tmp_path / "out"):
        wait_until(lambda: run_dir.is_known, "the coordinator")
        words = ["agent", "--join", run_dir.coordinator(), "--name", "n0", "--logs", tmp_path / "logs", WAITING_SCRIPT]
        with said.open("wb") as output:
            agent = subprocess.Popen(
                [*COMMAND, *map(str, words)],
                env={**os.environ, "DEADPOOL_SECRET": "of another job, which is long enough"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_until(lambda: b"does this node have the job's secret" in said.read_bytes(), "the agent's words")
            refused = wait_until(lambda: refusals(run_dir), "the coordinator's event")
        finally:
            agent.kill()
            agent.wait()
    assert all("does not know the job's secret" in event["reason"] for event in refused)
