"""The workload with things happening in it: a script for jobs under test.

E2E_ACTS holds words of the form WHAT@STEP:RANK. `wait` stops the rank at a gate in that step (gates.py), before the
optimizer: the other ranks meanwhile stand in a collective. `asked` stops it until it was asked to stop at a boundary:
without it a rank may have passed the boundary that a test counts on before the order comes. `room` stops it until a
slot is free for the version that the step ends in. `raise` is a bug in the user's code. Step -1 is before the first
line of the workload, step LOADING is where a newcomer loads its state, step ENDED is after the last line.

Only the first time that the step is done: `stop` is a process that the system has stopped, `loop` one that computes for
ever, `late` one that computes until it is told to come to rest, `pause` one that waits at a gate and said so, `break`
one whose device breaks; it breaks each time in `broken`. `die` ends the process each time, `durable` tells of a
checkpoint, `say` prints a line.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gates
import torch

from deadpool.demo import gpt
from deadpool.trainer import current
from deadpool_lab.workload import train
from deadpool_lab.workload.run import pause

_ACTS = [word.replace("@", ":").split(":") for word in os.environ.get("E2E_ACTS", "").split()]
_RANK = int(os.environ["RANK"])
LOADING, ENDED = 1000, 2000
DEVICE_ERROR = "CUDA error: device-side assert triggered"


def act(step: int) -> None:
    for what, at, rank in _ACTS:
        if (int(at), int(rank)) == (step, _RANK):
            if what not in ONCE:
                ALWAYS[what](step)
            elif gates.is_first_time(what):
                ONCE[what](step)


def _wait_until_asked(step: int) -> None:
    """A fault ends the wait too: the order would not come any more."""
    assert current.job is not None
    core = current.job.session.core
    if gates.folder() is not None:
        gates.wait_for(lambda: core._stop is not None or core.is_aborted)
        pause(f"asked in step {step}")


def _wait_for_room(step: int) -> None:
    """Once the version of this step has its slot, the next one takes what is free."""
    assert current.job is not None
    core = current.job.session.core
    gates.wait_for(lambda: core.has_slots or core.is_aborted)


def _raise(step: int) -> None:
    raise RuntimeError(f"a bug of the user's in step {step}")


def _stop(step: int) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _loop(step: int) -> None:
    while True:
        pass


def _late(step: int) -> None:
    """Busy all the time, so that nobody takes it for idle."""
    assert current.job is not None
    while not current.job.session.core.is_aborted:
        pass


def _pause(step: int) -> None:
    assert current.job is not None
    with current.job.pause("evaluation"):
        gates.wait_at("pause")


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
    "wait": gates.wait_at,
    "asked": _wait_until_asked,
    "room": _wait_for_room,
    "raise": _raise,
    "broken": _break_device,
    "die": _die,
    "durable": _durable,
}
ONCE = {"stop": _stop, "loop": _loop, "late": _late, "pause": _pause, "break": _break_device}


class Batches(gpt.RandomBatches):
    def __next__(self) -> Any:
        if current.job is None or not current.job.rehearses:
            act(self.state_dict()["position"])
        return super().__next__()

    def load_state_dict(self, state: dict[str, int]) -> None:
        act(LOADING)
        super().load_state_dict(state)


if __name__ == "__main__":
    act(-1)
    train.RandomBatches = Batches  # type: ignore[misc]
    train.main()
    act(ENDED)
