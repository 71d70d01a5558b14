"""An interrupted run of trials ends soon, and leaves nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from waiting import LIMIT_S, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.mark.thorough
def test_interrupted(tmp_path):
    """The leak check of every test sees what is left."""
    command = [sys.executable, "-m", "deadpool.cli.main", "lab", "chaos", "--strangers", "20", "--keep", str(tmp_path)]
    with (tmp_path / "said").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=tmp_path, start_new_session=True)
    wait_until(lambda: list(tmp_path.glob("*/undisturbed/run/job.json")), "a job")
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(LIMIT_S) == 130, (tmp_path / "said").read_text()
