"""The training script of a job under faults: the workload, with a pause in each step, and with a way to make it raise.

CRASH_SIGNAL makes it raise in its next step, as a bug would that occurs once. What it computes is the workload's.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from types import FrameType
from typing import Any

from deadpool.demo import gpt
from deadpool_lab.chaos.plan import CRASH_SIGNAL, PACE_VARIABLE
from deadpool_lab.workload import train

_crashes: list[float] = []


def _note_crash(number: int, frame: FrameType | None) -> None:
    _crashes.append(time.time())


class Batches(gpt.RandomBatches):
    def __next__(self) -> Any:
        time.sleep(float(os.environ.get(PACE_VARIABLE, "0")))
        if _crashes:
            raise RuntimeError(
                f"hit at {_crashes.pop()}"
            )  # the text differs each time: an equal error would count as a bug of the script
        return super().__next__()


if __name__ == "__main__":
    faulthandler.enable(sys.stderr)  # on SIGABRT it prints the stack of every thread
    signal.signal(CRASH_SIGNAL, _note_crash)
    train.RandomBatches = Batches  # type: ignore[misc, attr-defined]
    train.main()
