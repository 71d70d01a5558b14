"""Replication that the user claims: nothing travels where it is true, and where it is not the job says so and ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deadpool_lab.workload.run import LIMIT_S

SCRIPT = Path(__file__).with_name("claim.py")


@pytest.mark.thorough
@pytest.mark.parametrize("claim", ["true", "false"])
def test_claim(tmp_path, claim):
    command = [sys.executable, "-m", "deadpool.cli.main", "run", "--nodes", "2", "--run-dir", str(tmp_path / "run")]
    command += ["--overhead-budget", "0"]
    done = subprocess.run(
        [*command, str(SCRIPT), claim], stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S
    )
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    differ = [event["ranks"] for event in events if event["what"] == "replicas_differ"]
    if claim == "true":
        assert (done.returncode, differ) == (0, []), done.stdout.decode()
    else:
        assert (done.returncode, differ) == (1, [[0, 1]]), done.stdout.decode()
        assert "correct protect(replicated=...)" in done.stdout.decode()
