"""An interrupt that arrives while a process is started is neither lost nor early, whichever thread takes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from deadpool.child_processes import end_with_parent, interrupts_held

INTERRUPTS = [signal.SIGINT, signal.SIGTERM]


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


@pytest.fixture(params=["alone", "beside a thread"])
def thread_that_takes_signals(request):
    """As a progress bar has one: the kernel gives the signal to it when the main thread blocks it."""
    over = threading.Event()
    if request.param == "beside a thread":
        threading.Thread(target=over.wait, daemon=True).start()
    yield
    over.set()


@pytest.mark.parametrize("sig", INTERRUPTS)
@pytest.mark.usefixtures("thread_that_takes_signals")
def test_it_waits_until_the_block_is_left(handler, sig):
    went_on = False
    with pytest.raises(Interrupted), interrupts_held():
        os.kill(os.getpid(), sig)
        time.sleep(0.01)
        went_on = True
    assert went_on
    assert signal.getsignal(sig) is handler


INTERRUPTED_IN_A_HOOK = """
import os, signal, subprocess, threading, time
from deadpool.child_processes import end_with_parent, interrupts_held

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.05)

os.register_at_fork(after_in_parent=interrupt)
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
try:
    with interrupts_held():
        subprocess.Popen(["true"], preexec_fn=end_with_parent()).wait()
except KeyboardInterrupt:
    print("interrupted")
"""


def test_it_is_not_lost_in_a_hook_of_a_fork():
    """Python drops what is raised there: it prints 'Exception ignored' and goes on."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_IN_A_HOOK], capture_output=True, text=True, timeout=60)
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
