"""What a parked trainer gives back with --parked-state free: the memory of its parameters and optimizer state, until it
is seated. What it held was never the job's: a newcomer loads a snapshot over all of it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import torch

from deadpool.config.environment import PARKED_STATE_VARIABLE
from deadpool.snapshot.state.freed_state import FreedState

if TYPE_CHECKING:
    from deadpool.trainer.job import Job

FREE = "free"
_PATIENCE_S = 3.0
_PAUSE_S = 0.02


def free_if_wanted(job: Job) -> FreedState | None:
    if os.environ.get(PARKED_STATE_VARIABLE) != FREE:
        return None
    freed = job.state.free_parked()
    job.session.emit("parked_state_freed", bytes=freed.nbytes)
    return freed


def allocate(job: Job, freed: FreedState | None) -> None:
    """The command of --while-parked is being stopped meanwhile, and may still hold the memory."""
    if freed is None:
        return
    began = time.monotonic()
    while True:
        try:
            freed.allocate()
            break
        except torch.OutOfMemoryError:
            if time.monotonic() - began > _PATIENCE_S:
                raise
            time.sleep(_PAUSE_S)
    job.session.emit("parked_state_allocated", bytes=freed.nbytes, took_s=round(time.monotonic() - began, 4))
