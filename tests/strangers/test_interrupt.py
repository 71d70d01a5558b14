"""An interrupted campaign ends soon, and leaves nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]


@pytest.mark.thorough
def test_interrupted(tmp_path):
    """The leak check of every test sees what is left."""
    command = [sys.executable, "-m", "deadpool.cli.main", "chaos", "--strangers", "20", "--keep", str(tmp_path)]
    with (tmp_path / "said").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=tmp_path, start_new_session=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("*/undisturbed/run/job.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(90) == 130, (tmp_path / "said").read_text()
