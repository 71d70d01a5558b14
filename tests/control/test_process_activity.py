"""What counts as doing nothing, tried on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from waiting import wait_until

from deadpool.control.trainers.process_activity import ActivityWatcher
from deadpool.protocol.inputs import Activity

SAMPLE_S = 0.4
WAITS = "print('begun', flush=True); import threading; threading.Event().wait()"
COMPUTES = "print('begun', flush=True)\nwhile True: pass"
SLEEPS = "print('begun', flush=True); import time; time.sleep(1000)"
LISTENS = "print('begun', flush=True); import socket; socket.socketpair()[0].recv(1)"
HAS_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPS!r}])"
READS = "print('begun', flush=True)\nwhile True:\n    open('/dev/zero', 'rb', buffering=0).read(1 << 17)"
CHILD_COMPUTES = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {COMPUTES!r}])"
GRANDCHILD_COMPUTES = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD_COMPUTES!r}])"
BY_A_THREAD = f"import threading; t = threading.Thread(target=lambda: exec({CHILD_COMPUTES!r})); t.start(); t.join()"


class Watched:
    def __init__(self, source: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", source], start_new_session=True, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "begun\n", "what it is about has begun"
        self.reports: list[Activity] = []
        self.pids = {"n0.0": self.process.pid}
        self._watcher = ActivityWatcher(lambda: self.pids, lambda _, activity: self.reports.append(activity))

    def sample(self, times: int) -> list[Activity]:
        """An activity is seen over a time, so time has to pass."""
        for _ in range(times):
            time.sleep(SAMPLE_S)
            self._watcher.sample(SAMPLE_S)
        return self.reports

    def sample_until(self, *wanted: Activity) -> None:
        """Until these were reported last. A process that has just been woken may be seen at work for a moment."""
        count = len(wanted)
        wait_until(lambda: tuple(self.sample(1)[-count:]) == wanted, lambda: f"{wanted} in {self.reports}")


@pytest.fixture
def watch() -> Iterator[list[Watched]]:
    started: list[Watched] = []
    yield started
    for each in started:
        os.killpg(each.process.pid, signal.SIGKILL)
        each.process.communicate()


def begin(watch: list[Watched], source: str) -> Watched:
    watch.append(Watched(source))
    return watch[-1]


def test_process_that_waits_is_idle_and_is_reported_once(watch):
    waits = begin(watch, WAITS)
    waits.sample_until(Activity.IDLE)
    assert waits.sample(3) == [Activity.IDLE]


@pytest.mark.parametrize("source", [SLEEPS, LISTENS, HAS_A_CHILD])
def test_process_that_waits_for_something_outside_is_told_apart(watch, source):
    begin(watch, source).sample_until(Activity.OUTSIDE)


@pytest.mark.parametrize("source", [COMPUTES, READS, CHILD_COMPUTES, GRANDCHILD_COMPUTES, BY_A_THREAD])
def test_process_that_does_something_is_active(watch, source):
    assert begin(watch, source).sample(4) == []


def test_process_that_is_stopped_and_goes_on(watch):
    waits = begin(watch, WAITS)
    waits.sample_until(Activity.IDLE)
    waits.process.send_signal(signal.SIGSTOP)
    waits.sample_until(Activity.STOPPED)
    waits.process.send_signal(signal.SIGCONT)
    waits.sample_until(Activity.IDLE)
    reported = [each for each in waits.reports if each is not Activity.ACTIVE]
    assert reported == [Activity.IDLE, Activity.STOPPED, Activity.IDLE]


def test_process_that_has_ended_is_forgotten(watch):
    waits = begin(watch, WAITS)
    waits.sample_until(Activity.IDLE)
    pid, waits.pids = waits.process.pid, {}
    waits.sample(1)
    waits.pids = {"n0.0": pid}
    waits.sample_until(Activity.IDLE, Activity.IDLE)  # another process of that name begins anew
