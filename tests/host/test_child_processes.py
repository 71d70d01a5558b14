"""An interrupt that arrives while a process is started is neither lost nor early, whichever thread takes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from deadpool.host.child_processes import end_with_parent, interrupts_held

INTERRUPTS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


class Interrupted(Exception):
    pass


@pytest.fixture(autouse=True)
def handler():
    def interrupt(number, frame):
        raise Interrupted

    before = {sig: signal.signal(sig, interrupt) for sig in INTERRUPTS}
    yield interrupt
    for sig, handler in before.items():
        signal.signal(sig, handler)


@pytest.mark.parametrize("sig", INTERRUPTS)
def test_it_waits_until_the_block_is_left(handler, sig):
    went_on = False
    with pytest.raises(Interrupted), interrupts_held():
        os.kill(os.getpid(), sig)
        went_on = True
    assert went_on
    assert signal.getsignal(sig) is handler


@pytest.mark.parametrize("sig", INTERRUPTS)
def test_it_waits_where_another_thread_takes_it(handler, sig):
    """As the thread of a progress bar does, which has begun before and blocks nothing."""
    due, taken = threading.Event(), threading.Event()

    def take() -> None:
        due.wait()
        signal.raise_signal(sig)
        taken.set()

    threading.Thread(target=take).start()
    went_on = False
    with pytest.raises(Interrupted), interrupts_held():
        due.set()
        taken.wait()
        went_on = True
    assert went_on
    assert signal.getsignal(sig) is handler


INTERRUPTED_IN_A_HOOK = """
import os, signal, subprocess, threading
from deadpool.host.child_processes import end_with_parent, interrupts_held

due, taken = threading.Event(), threading.Event()

def take():
    due.wait()
    signal.raise_signal(signal.SIGINT)
    taken.set()

def interrupt():
    due.set()
    taken.wait()

os.register_at_fork(after_in_parent=interrupt)
threading.Thread(target=take).start()
try:
    with interrupts_held():
        subprocess.Popen(["true"], preexec_fn=end_with_parent()).wait()
except KeyboardInterrupt:
    print("interrupted")
"""


def test_it_is_not_lost_in_a_hook_of_a_fork():
    """Python drops what is raised there: it prints 'Exception ignored' and goes on."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_IN_A_HOOK], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_a_signal_without_a_handler_is_left_alone():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with interrupts_held():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_other_threads_may_start_processes_too():
    codes = []

    def start() -> None:
        with interrupts_held():
            codes.append(subprocess.run(["true"], preexec_fn=end_with_parent()).returncode)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert codes == [0]
