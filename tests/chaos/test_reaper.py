"""Nothing outlives the runner, also not what stands still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil

from deadpool.chaos.reaper import guarded, left_behind

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_what_is_left_is_found_and_ended():
    with guarded() as mark:
        child = subprocess.Popen(SLEEP)
        os.kill(child.pid, signal.SIGSTOP)
        (found,) = left_behind(mark)
        assert "time.sleep(60)" in found
        assert child.wait(5) == -signal.SIGKILL
        assert left_behind(mark) == []


RUNNER = """
import os, signal, subprocess, sys
from deadpool.chaos.reaper import guarded
with guarded():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    os.kill(child.pid, signal.SIGSTOP)
    print(child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_runner_that_is_killed_leaves_nothing_standing():
    runner = subprocess.run([sys.executable, "-c", RUNNER], stdout=subprocess.PIPE, timeout=60)
    assert runner.returncode == -signal.SIGKILL
    pid, deadline = int(runner.stdout), time.monotonic() + 10.0
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
