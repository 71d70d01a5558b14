"""A bounded part of `deadpool chaos`: real faults, drawn from a seed, and nothing lost and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "deadpool.cli.main", "chaos"]
FEW = "kill_node,damage_home"
MORE = f"{FEW},cut_off,cut_coordinator,kill_coordinator"


def chaos(*arguments: object) -> list[str]:
    return [*COMMAND, *map(str, arguments)]


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kinds", [FEW, MORE])
def test_some_faults_and_nothing_was_lost(tmp_path, kinds):
    """One of each kind."""
    figures_at, count = tmp_path / "figures.json", len(kinds.split(","))
    command = chaos("--faults", count, "--seed", 5, "--layout", "fsdp2", "--kinds", kinds, "--json", figures_at)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    figures = json.loads(figures_at.read_text())
    assert figures["bit_identical"] and figures["hung"] == 0 and figures["left_behind"] == []
    assert len(figures["faults"]) == count and set(figures["recovery_s"]) == set(kinds.split(","))
    assert "BIT-IDENTICAL" in done.stdout and "NOT BIT" not in done.stdout


@pytest.mark.thorough
@pytest.mark.timeout(120)
@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGKILL])
def test_cut_short_while_a_node_stands_still(tmp_path, sig):
    """What was started is found by the checks around every test, if it is still there."""
    command = chaos("--faults", 5, "--seed", 1, "--layout", "fsdp2", "--kinds", "stop_node")
    with (tmp_path / "out").open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 90.0
    while b"#1 " not in (tmp_path / "out").read_bytes():
        assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "out").read_text()
        time.sleep(0.05)
    process.send_signal(sig)
    assert process.wait(20.0) == (-sig if sig is signal.SIGKILL else 130)
    deadline = time.monotonic() + 10.0
    while left := list(Path(os.environ["TMPDIR"]).glob("deadpool-chaos-*")):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
