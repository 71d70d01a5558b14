"""Which main threads are taken for stuck after an abort."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

STUCK, WELL = 75, 0
PROGRAM = """
import os, threading, time
import torch
from deadpool.trainer.stuck import UnwindWatch

watch = UnwindWatch(lambda: os._exit({stuck}))
watch.begin()
threading.Timer(4.0, lambda: os._exit({well})).start()
{main}
"""
MAINS = {
    "waits inside torch": ("torch.futures.Future().wait()", STUCK),
    "computes": ("while True: torch.ones(200, 200) @ torch.ones(200, 200)", WELL),
    "waits for something else": ("time.sleep(60)", WELL),
    "came back and waits again": ("watch.end(); torch.futures.Future().wait()", WELL),
}


@pytest.mark.parametrize("main", MAINS)
def test_main_thread_that(main):
    line, code = MAINS[main]
    program = textwrap.dedent(PROGRAM).format(stuck=STUCK, well=WELL, main=line)
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == code
