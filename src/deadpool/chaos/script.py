"""The training script of a hit job: the workload at a pace that leaves time to inject, and with a tender spot.

CRASH_SIGNAL makes it raise in its next step, as a bug would that hits once. What it computes is the workload's.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from types import FrameType
from typing import Any

from deadpool.chaos.jobs import CRASH_SIGNAL
from deadpool.environment import CHAOS_PACE_VARIABLE
from deadpool.workload import gpt, train

_hurt: list[float] = []


def _take_hit(number: int, frame: FrameType | None) -> None:
    _hurt.append(time.time())


class Batches(gpt.Batches):
    def __next__(self) -> Any:
        time.sleep(float(os.environ.get(CHAOS_PACE_VARIABLE, "0")))
        if _hurt:
            raise RuntimeError(f"hit at {_hurt.pop()}")  # in words that never come twice: it is no bug of the script
        return super().__next__()


if __name__ == "__main__":
    faulthandler.enable(sys.stderr)  # SIGABRT tells where every thread stands
    signal.signal(CRASH_SIGNAL, _take_hit)
    train.Batches = Batches  # type: ignore[misc]
    train.main()
