"""`deadpool demo`, cut short. A whole one is run from the wheel (tests/packaging)."""

from __future__ import annotations

import signal

import pytest
from command import alive, started, temporary_folders
from waiting import LIMIT_S, wait_until


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda sig: sig.name)
def test_demo_cut_short_leaves_nothing(tmp_path, sig):
    with started("demo", output=tmp_path / "out") as process:
        wait_until(lambda: [f for f in temporary_folders() if list(f.glob("*/run/job.json"))], "a job")
        process.send_signal(sig)
        assert process.wait(LIMIT_S) == (-sig if sig is signal.SIGKILL else 130)
        wait_until(lambda: not alive() and not temporary_folders(), "a clean end")
