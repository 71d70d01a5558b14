"""Which main threads are taken for stuck after an abort."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

import pytest

from deadpool.trainer.stuck import STILL_S, UnwindWatch

STUCK, WELL = 75, 0
PROGRAM = """
import os, threading, time
import torch
from deadpool.trainer.stuck import UnwindWatch

watch = UnwindWatch(lambda seconds: os._exit({stuck}))
watch.stepped({step_s})
watch.begin()
threading.Timer(4.0, lambda: os._exit({well})).start()
{main}
"""
INSIDE_TORCH = "torch.futures.Future().wait()"
MAINS = {
    "waits inside torch": (INSIDE_TORCH, STUCK),
    "computes": ("while True: torch.ones(200, 200) @ torch.ones(200, 200)", WELL),
    "waits for something else": ("time.sleep(60)", WELL),
    "came back and waits again": ("watch.end(); torch.futures.Future().wait()", WELL),
}


@pytest.mark.parametrize("main", MAINS)
def test_main_thread_that(main):
    line, code = MAINS[main]
    assert outcome(line) == code


def test_main_thread_that_waits_while_the_device_drains_slow_steps():
    """Within the four seconds that the program lives: stuck after three steps of one second, not of two."""
    assert outcome(INSIDE_TORCH, step_s=1.0) == STUCK
    assert outcome(INSIDE_TORCH, step_s=2.0) == WELL


def test_quick_steps_do_not_make_it_impatient():
    watch = UnwindWatch(lambda seconds: None)
    assert watch.limit_s == STILL_S
    watch.step_s = 0.001
    assert watch.limit_s == STILL_S
    watch.step_s = 10.0
    assert watch.limit_s == 30.0


def outcome(main: str, step_s: float = 0.0) -> int:
    program = textwrap.dedent(PROGRAM).format(stuck=STUCK, well=WELL, main=main, step_s=step_s)
    return subprocess.run([sys.executable, "-c", program], timeout=60).returncode


@pytest.mark.parametrize(("step_s", "silent_s", "tells"), [(1.0, 30.0, True), (1.0, 10.0, False), (10.0, 30.0, False)])
def test_halt_in_a_step_that_lasts_long_leaves_a_trace_of_every_thread(step_s, silent_s, tells, capfd, monkeypatch):
    watch, now = UnwindWatch(lambda _: None), time.monotonic()
    watch.stepped(step_s)
    monkeypatch.setattr(time, "monotonic", lambda: now + silent_s)
    watch.tell_where_if_long()
    told = capfd.readouterr().err
    assert ("no step for 30 s" in told) == tells
    assert ("in test_halt_in_a_step_that_lasts_long" in told) == tells
