"""The workload with things happening in it: a script for jobs under test.

E2E_SCENE holds words of the form WHAT@STEP:RANK. `wait` stops the rank in that step, says so by a file that holds its
process id, and goes on when the test has opened the gate: the other ranks meanwhile stand in a collective. `raise` is
a bug in the user's code. Step -1 is before the first line of the workload. Only the first time that the step is done:
`stop` is a process that the system has stopped, `loop` one that computes for ever, `late` one
that computes for long, `pause` one that waits for long and said so, `break` one whose device breaks; it
breaks each time in `broken`. `die` ends the process each time, `durable` tells of a checkpoint, `say` prints a line.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

from deadpool.trainer import current
from deadpool.workload import gpt, train
from deadpool.workload.jitter import pause

_ACTS = [word.replace("@", ":").split(":") for word in os.environ.get("E2E_SCENE", "").split()]
_RANK = int(os.environ["RANK"])
LATE_S = 8.0
DEVICE_ERROR = "CUDA error: device-side assert triggered"


def act(step: int) -> None:
    for what, at, rank in _ACTS:
        if (int(at), int(rank)) == (step, _RANK):
            if what not in ONCE:
                ALWAYS[what](step)
            elif _is_first_time(what):
                ONCE[what](step)


def _is_first_time(what: str) -> bool:
    """Only where a test has made the folder for it."""
    folder = os.environ.get("E2E_GATES")
    if folder is None or (Path(folder) / what).exists():
        return False
    (Path(folder) / what).touch()
    return True


def _wait_at_gate(step: int) -> None:
    folder = Path(os.environ["E2E_GATES"])
    draft = folder / f"draft-{os.getpid()}"
    draft.write_text(str(os.getpid()))
    pause(f"before gate {step}")
    draft.rename(folder / f"reached-{step}")
    while not (folder / f"open-{step}").exists():
        time.sleep(0.005)
    pause(f"after gate {step}")


def _raise(step: int) -> None:
    raise RuntimeError(f"a bug of the user's in step {step}")


def _stop(step: int) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _loop(step: int) -> None:
    while True:
        pass


def _late(step: int) -> None:
    end = time.monotonic() + LATE_S
    while time.monotonic() < end:
        pass


def _pause(step: int) -> None:
    assert current.job is not None
    with current.job.pause("evaluation"):
        time.sleep(LATE_S)


class _PoisonedStream:
    """The twin of what torch.cuda gives once the context of the process is lost."""

    def query(self) -> bool:
        raise RuntimeError(f"{DEVICE_ERROR}\nand what to do about it")


def _break_device(step: int) -> None:
    torch.cuda.is_initialized = lambda: True  # type: ignore[assignment]
    torch.cuda.current_stream = _PoisonedStream  # type: ignore[assignment]
    raise RuntimeError(DEVICE_ERROR)


def _die(step: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _durable(step: int) -> None:
    assert current.job is not None
    current.job.durable(step, Path("/checkpoints") / str(step))


def _say(step: int) -> None:
    print(f"rank {_RANK} is in step {step}")


ALWAYS = {
    "say": _say,
    "wait": _wait_at_gate,
    "raise": _raise,
    "broken": _break_device,
    "die": _die,
    "durable": _durable,
}
ONCE = {"stop": _stop, "loop": _loop, "late": _late, "pause": _pause, "break": _break_device}


class Batches(gpt.Batches):
    def __next__(self) -> Any:
        act(self.state_dict()["position"])
        return super().__next__()


if __name__ == "__main__":
    act(-1)
    train.Batches = Batches  # type: ignore[misc]
    train.main()
