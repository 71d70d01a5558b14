"""This process as a trainer: its session, and the ways in which control leaves a step or the script.

`Superseded` and `Restart`: Exceptions that take a trainer's main thread out of its step or its script, and the exit
code of a restart.

The session, default group and job of this process. main.py and protect.py set them; None without DeadPool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool.errors import Unwind

if TYPE_CHECKING:
    from deadpool.trainer.job import Job
    from deadpool.trainer.process.init_process_group import DefaultGroup
    from deadpool.trainer.process.session import Session


CODE_RESTART = 75
"""Exit code of a process that another one is to replace. It is not 0, so it is never taken for the end of a script."""


class Superseded(Exception):
    """The expected order will not come, because a newer generation began."""


class Restart(Unwind):
    """Ends the script of a trainer: a fresh process goes on from the memory of its node."""


session: Session | None = None
default_group: DefaultGroup | None = None
job: Job | None = None
