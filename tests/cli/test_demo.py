"""`deadpool demo`, whole and cut short."""

from __future__ import annotations

import json
import signal

import pytest
from command import alive, await_true, deadpool, started, temporary_folders

CLEANING_S = 30.0


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda sig: sig.name)
def test_demo_cut_short_leaves_nothing(tmp_path, sig):
    with started("demo", output=tmp_path / "out") as process:
        await_true(lambda: [f for f in temporary_folders() if list(f.glob("*/run/job.json"))], "a job")
        process.send_signal(sig)
        assert process.wait(CLEANING_S) == (-sig if sig is signal.SIGKILL else 130)
        await_true(lambda: not alive() and not temporary_folders(), "a clean end", CLEANING_S)


@pytest.mark.timeout(240)
def test_demo_shows_that_nothing_was_lost(tmp_path):
    done = deadpool("demo", "--steps", 6, "--json", tmp_path / "figures.json", timeout_s=220.0)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "BIT-IDENTICAL" in done.stdout and "NOT BIT" not in done.stdout
    assert json.loads((tmp_path / "figures.json").read_text())["bit_identical"] is True
