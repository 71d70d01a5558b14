"""The workload with things happening in it: a script for jobs under test.

E2E_SCENE holds words of the form WHAT@STEP:RANK. `wait` stops the rank in that step, says so by a file that holds its
process id, and goes on when the test has opened the gate: the other ranks meanwhile stand in a collective. `raise` is
a bug in the user's code. Step -1 is before the first line of the workload.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from deadpool.workload import gpt, train

_ACTS = [word.replace("@", ":").split(":") for word in os.environ.get("E2E_SCENE", "").split()]
_RANK = int(os.environ["RANK"])


def act(step: int) -> None:
    for what, at, rank in _ACTS:
        if (int(at), int(rank)) == (step, _RANK):
            {"wait": _wait_at_gate, "raise": _raise}[what](step)


def _wait_at_gate(step: int) -> None:
    folder = Path(os.environ["E2E_GATES"])
    draft = folder / f"draft-{os.getpid()}"
    draft.write_text(str(os.getpid()))
    draft.rename(folder / f"reached-{step}")
    while not (folder / f"open-{step}").exists():
        time.sleep(0.005)


def _raise(step: int) -> None:
    raise RuntimeError(f"a bug of the user's in step {step}")


class Batches(gpt.Batches):
    def __next__(self) -> Any:
        act(self.state_dict()["position"])
        return super().__next__()


if __name__ == "__main__":
    act(-1)
    train.Batches = Batches  # type: ignore[misc]
    train.main()
