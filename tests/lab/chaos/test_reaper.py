"""Nothing outlives the runner, also not what stands still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
from waiting import LIMIT_S, wait_until

from deadpool_lab.chaos.surroundings.processes import guarded, left_behind

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_what_is_left_is_found_and_ended():
    with guarded() as mark:
        child = subprocess.Popen(SLEEP)
        wait_until(lambda: mark in environment_of(child.pid), "the end of exec, after which the mark is seen")
        os.kill(child.pid, signal.SIGSTOP)
        (found,) = left_behind(mark)
        assert "time.sleep(600)" in found
        assert child.wait(LIMIT_S) == -signal.SIGKILL
        assert left_behind(mark) == []


def environment_of(pid: int) -> str:
    with open(f"/proc/{pid}/environ", encoding="utf-8") as file:
        return file.read()


RUNNER = """
import os, signal, subprocess, sys
from deadpool_lab.chaos.surroundings.processes import guarded
with guarded():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    os.kill(child.pid, signal.SIGSTOP)
    print(child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_runner_that_is_killed_leaves_nothing_standing():
    runner = subprocess.run([sys.executable, "-c", RUNNER], stdout=subprocess.PIPE, timeout=LIMIT_S)
    assert runner.returncode == -signal.SIGKILL
    wait_until(lambda: has_ended(int(runner.stdout)), "the end of the child")


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
