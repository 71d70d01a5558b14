"""`deadpool.first_start`: whether this is the very first process of its rank in this job.

A rehearsal, a newcomer and a restarted process run the script's preparation again while the job goes on. What may be
done only once, such as clearing a folder, asks this first. Processes that the script starts inherit the answer.
"""

from __future__ import annotations

import os

from deadpool.config.environment import FIRST_START_VARIABLE
from deadpool.protocol.messages import Rehearse, Seat

_REQUEUED_VARIABLE = "SLURM_RESTART_COUNT"  # how often Slurm has requeued this job
_was_asked = False


def set_environment_for(role: Seat | Rehearse | None) -> None:
    """Called before the first line of the script."""
    begins = isinstance(role, Seat) and role.resume is None and role.generation.is_founding
    requeued = os.environ.get(_REQUEUED_VARIABLE, "0") != "0"
    os.environ[FIRST_START_VARIABLE] = str(int(begins and not requeued))


def joins_job(role: Seat | Rehearse | None) -> bool:
    """Whether a process with this role joins a job that has done something. One that begins from the first line again,
    or from a checkpoint of an earlier run, does not."""
    is_newcomer = isinstance(role, Seat) and role.resume is not None and not role.generation.is_founding
    return isinstance(role, Rehearse) or is_newcomer


def is_first() -> bool:
    """True without DeadPool, too."""
    return os.environ.get(FIRST_START_VARIABLE, "1") == "1"


def ask() -> bool:
    """Tells whether this is the first start, and notes that the script has asked."""
    global _was_asked
    _was_asked = True
    return is_first()


def was_asked() -> bool:
    """Whether the script has asked in this process: then it knows that its preparation may run again."""
    return _was_asked
