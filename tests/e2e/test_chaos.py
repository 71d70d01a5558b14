"""A bounded part of `deadpool lab chaos`: real faults, drawn from a seed, and nothing lost and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import LIMIT_S, wait_until

COMMAND = [sys.executable, "-m", "deadpool.cli.main", "lab", "chaos"]
FEW = "kill_node,damage_home"
MORE = f"{FEW},cut_off,cut_coordinator,kill_coordinator"
DISKS = "disk_full,disk_read_only,disk_slow,terminal_closed,second_launcher,kill_coordinator,kill_node"


def chaos(*arguments: object) -> list[str]:
    return [*COMMAND, *map(str, arguments)]


@pytest.mark.thorough
@pytest.mark.parametrize("kinds", [FEW, MORE, DISKS])
def test_some_faults_and_nothing_was_lost(tmp_path, kinds):
    """One of each kind."""
    figures_at, count = tmp_path / "figures.json", len(kinds.split(","))
    command = chaos("--faults", count, "--seed", 5, "--layout", "fsdp2", "--kinds", kinds, "--out", figures_at)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2 * LIMIT_S)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    figures = json.loads(figures_at.read_text())
    assert figures["bit_identical"] and figures["hung"] == 0 and figures["left_behind"] == []
    assert len(figures["faults"]) == count and set(figures["recovery_s"]) == set(kinds.split(","))
    assert "BIT-IDENTICAL" in done.stdout and "NOT BIT" not in done.stdout


@pytest.mark.thorough
def test_run_folder_is_full_for_long_and_has_all_events_afterwards(tmp_path):
    """As ten minutes of it, but shorter."""
    figures_at = tmp_path / "figures.json"
    command = chaos("--full-disk-minutes", 0.5, "--layout", "fsdp2", "--out", figures_at)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2 * LIMIT_S)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    faults = json.loads(figures_at.read_text())["faults"]
    assert [fault["kind"] for fault in faults] == ["disk_full", "kill_node", "kill_trainer"]
    assert all(1 in fault["beside"] for fault in faults[1:]), "both came while it was full"


@pytest.mark.thorough
@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("kind", ["stop_node", "disk_slow"])
def test_cut_short_while_a_node_or_the_disk_stands_still(tmp_path, sig, kind):
    """Processes that were started are found by the checks around every test, if they are still there."""
    command = chaos("--faults", 5, "--seed", 1, "--layout", "fsdp2", "--kinds", kind)
    with (tmp_path / "out").open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    said = tmp_path / "out"
    wait_until(lambda: process.poll() is not None or b"#1 " in said.read_bytes(), said.read_text)
    process.send_signal(sig)
    assert process.wait(LIMIT_S) == (-sig if sig is signal.SIGKILL else 130)
    wait_until(lambda: not list(Path(os.environ["TMPDIR"]).glob("deadpool-chaos-*")), "the end of its folder")
    wait_until(lambda: not list(disks()), "the end of its disk")


def disks() -> Iterator[str]:
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if "deadpool-disk" in path.read_text():
                yield path.parts[3]
