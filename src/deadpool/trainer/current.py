"""The session, default group and job of this process. main.py and pool.py set them; None without DeadPool."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deadpool.trainer.job import Job
    from deadpool.trainer.process.init_process_group import DefaultGroup
    from deadpool.trainer.process.session import Session

session: Session | None = None
default_group: DefaultGroup | None = None
job: Job | None = None
