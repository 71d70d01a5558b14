"""Which main threads are taken for stuck after an abort."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import pytest
import torch
from waiting import LIMIT_S, wait_until

from deadpool.trainer.recovery.unwinding import (
    _SAMPLE_S,
    STILL_S,
    UnwindWatchdog,
    is_inside_torch,
    where_script_stands,
)

STUCK, WELL = 75, 0
FORKS = """
import json, os, sys, threading, time
import torch
from deadpool.protocol.identity import Generation
from deadpool.trainer.recovery.unwinding import UnwindWatchdog

pids = {}
for name, program in json.loads(sys.argv[1]).items():
    pids[name] = os.fork()
    if pids[name] == 0:
        exec(program)
        os._exit(1)
print(json.dumps({name: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for name, pid in pids.items()}))
"""
"""Runs programs at once, and imports torch for all of them."""
PROGRAM = """
{lives}
watch = UnwindWatchdog(lambda seconds: os._exit({stuck}))
watch._unwound = Counted()
watch.stepped({step_s})
fence = Generation(1, 2)
watch.begin(fence)
threading.Thread(target={life}, daemon=True).start()
{main}
"""
LIVES = """
samples = []


class Counted(threading.Event):
    def wait(self, timeout=None):
        samples.append(timeout)
        return super().wait(timeout)


def live_until_it_was_watched():
    while len(samples) < {samples} and any(each.name == "deadpool-unwind-watch" for each in threading.enumerate()):
        time.sleep(0.05)
    os._exit({well})


def live_until_it_is_found():
    time.sleep({limit_s})
    os._exit({well})
"""
WATCHED = int(3 * STILL_S / _SAMPLE_S)
"""Samples that are enough to find a main thread stuck three times."""
INSIDE_TORCH = "torch.futures.Future().wait()"
BESIDE_A_DEVICE = f"torch.accelerator.is_available = lambda: True; {INSIDE_TORCH}"
BESIDE_A_THREAD = f"""
def compute():
    while True:
        pass


threading.Thread(target=compute, daemon=True).start()
{INSIDE_TORCH}
"""
MAINS = {
    "waits inside torch": (INSIDE_TORCH, STUCK),
    "computes": ("while True: torch.ones(200, 200) @ torch.ones(200, 200)", WELL),
    "waits for something else": ("time.sleep(600)", WELL),
    "came back and waits again": (f"watch.end(fence); {INSIDE_TORCH}", WELL),
    "came back before it was watched": (f"watch.end(fence); watch.begin(fence); {INSIDE_TORCH}", WELL),
    "came back and does not from the next abort": (
        f"watch.end(fence); watch.begin(Generation(1, 3)); {INSIDE_TORCH}",
        STUCK,
    ),
}
STEPS = {1.0: STUCK, 3600.0: WELL}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, int]:
    """They do little but wait, so all of them are run at once."""
    programs = {name: program(main, code) for name, (main, code) in MAINS.items()}
    programs["sleeps, all of it"] = program(INSIDE_TORCH, STUCK, 3600.0)
    programs["waits for a thread that computes"] = program(BESIDE_A_THREAD, WELL, 3600.0)
    programs |= {f"steps of {step_s} s": program(BESIDE_A_DEVICE, code, step_s) for step_s, code in STEPS.items()}
    words = [sys.executable, "-c", FORKS, json.dumps(programs)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=2 * LIMIT_S)
    return json.loads(done.stdout)


@pytest.mark.parametrize("main", MAINS)
def test_main_thread_that(main, outcomes):
    assert outcomes[main] == MAINS[main][1]


def test_main_thread_that_waits_while_the_device_drains_slow_steps(outcomes):
    """Stuck after three steps of one second; three of an hour last longer than the program lives."""
    assert outcomes["steps of 1.0 s"] == STUCK
    assert outcomes["steps of 3600.0 s"] == WELL


def test_process_without_a_device_in_which_every_thread_sleeps(outcomes):
    """However long steps are: nothing can come any more."""
    assert outcomes["sleeps, all of it"] == STUCK
    assert outcomes["waits for a thread that computes"] == WELL


def test_quick_steps_do_not_make_it_impatient():
    watch = UnwindWatchdog(lambda seconds: None)
    assert watch.limit_s == STILL_S
    watch.step_s = 0.001
    assert watch.limit_s == STILL_S
    watch.step_s = 10.0
    assert watch.limit_s == 30.0


def program(main: str, code: int, step_s: float = 0.0) -> str:
    """One that is stuck is found so, however slow the machine is. Another one lives until it was watched for so many
    samples, or is watched no more."""
    lives = LIVES.format(samples=WATCHED, limit_s=LIMIT_S, well=WELL)
    life = "live_until_it_is_found" if code == STUCK else "live_until_it_was_watched"
    return PROGRAM.format(stuck=STUCK, lives=lives, life=life, main=main, step_s=step_s)


@pytest.mark.parametrize(("step_s", "silent_s", "tells"), [(1.0, 30.0, True), (1.0, 10.0, False), (10.0, 30.0, False)])
def test_halt_in_a_step_that_lasts_long_leaves_a_trace_of_every_thread(step_s, silent_s, tells, capfd, monkeypatch):
    watch, now = UnwindWatchdog(lambda _: None), time.monotonic()
    watch.stepped(step_s)
    monkeypatch.setattr(time, "monotonic", lambda: now + silent_s)
    watch.dump_stacks_if_step_is_long()
    told = capfd.readouterr().err
    assert ("no step for 30 s" in told) == tells
    assert ("in test_halt_in_a_step_that_lasts_long" in told) == tells


def test_line_of_the_script_that_waits_in_torch_is_named():
    future, begun = torch.futures.Future(), threading.Event()

    def wait_for_what_never_comes():
        begun.set()
        future.wait()

    thread = threading.Thread(target=wait_for_what_never_comes)
    thread.start()
    begun.wait()
    wait_until(lambda: is_inside_torch(thread.ident), "the wait")
    place = where_script_stands(thread.ident)
    future.set_result(0)
    thread.join()
    assert place.startswith("test_unwind_watchdog.py:") and place.endswith("in wait_for_what_never_comes")
