"""The workload as a job, with delays if they are asked for.

`WorkloadTrial` runs the workload as a job, with a random delay behind every wait if delays are asked for.

`pause`, `pause_async` and `delay_s`: Random delays where a test and a job meet, to find tests that pass only at one
speed. Only if E2E_JITTER is set.

`scripts/check --jitter SEED` sets it. A delay follows from the seed, the place, the process and how often it was
there, so that a run that fails can be repeated; no test may depend on how long one is.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deadpool.demo.trial import LIMIT_S, Trial

VARIABLE = "E2E_JITTER"
LONGEST_S = 0.5

_visits: Counter[str] = Counter()


def pause(where: str) -> None:
    """Sleeps from 0 to LONGEST_S, if delays are asked for."""
    if seed := os.environ.get(VARIABLE):
        time.sleep(delay_s(seed, where))


async def pause_async(where: str) -> None:
    """The same where others have to run on in the same event loop."""
    if seed := os.environ.get(VARIABLE):
        await asyncio.sleep(delay_s(seed, where))


def delay_s(seed: str, where: str) -> float:
    """Returns the delay of this visit: of a rank of a job, or of the test that is running."""
    visitor = os.environ.get("RANK") or os.environ.get("PYTEST_CURRENT_TEST", "")
    place = f"{seed} {where} {visitor}"
    _visits[place] += 1
    return random.Random(f"{place} {_visits[place]}").uniform(0.0, LONGEST_S)


__all__ = ["LIMIT_S", "SCRIPT", "WorkloadTrial"]

SCRIPT = Path(__file__).with_name("train.py")


@dataclass
class WorkloadTrial(Trial):
    """One job that trains the workload, to which `script_arguments` go."""

    script: Path = SCRIPT

    def await_true(self, ready: Callable[[], bool], what: str, timeout_s: float = LIMIT_S) -> None:
        super().await_true(ready, what, timeout_s)
        pause(what)
