"""A trainer is killed: the workers that its script has forked do not outlive it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import LIMIT_S, wait_until

SCRIPT = Path(__file__).with_name("killed_with_workers.py")


def alive_after_the_kill(*arguments: str) -> list[bool]:
    """Which of its children outlive their parent.

    They stand still when it is killed: a worker that runs would notice the end by itself, after seconds.
    """
    parent = subprocess.Popen([sys.executable, "-W", "ignore", SCRIPT, *arguments], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    for child in children:
        child.suspend()
    wait_until(lambda: all(child.status() == psutil.STATUS_STOPPED for child in children), "children that stand still")
    parent.kill()
    parent.wait()
    parent.stdout.close()
    psutil.wait_procs(children[:2] if arguments else [], timeout=LIMIT_S)
    _, alive = psutil.wait_procs(children, timeout=1)
    left = [child in alive for child in children]
    for child in alive:
        child.kill()
    return left


@pytest.mark.parametrize(
    ("arguments", "workers_live_on"), [(["injection_ordered"], False), ([], True)], ids=["injection_ordered", "control"]
)
def test_workers_end_with_a_killed_trainer(arguments, workers_live_on):
    *workers, child_of_a_thread = alive_after_the_kill(*arguments)
    assert workers == [workers_live_on] * 2
    assert child_of_a_thread, "its thread ended long ago, and it was not to end with that"
