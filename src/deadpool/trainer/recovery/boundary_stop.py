"""Stops this rank between two steps when the coordinator asks for it, so that ranks can move to another node without
any step being computed twice.

All ranks capture the version at which they stop. Afterwards the coordinator either fences the job or lets it go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool.protocol.messages import Standing

if TYPE_CHECKING:
    from deadpool.trainer.job import Job

SLOT_WAIT_S = 30.0
"""Limit for the wait for a slot: versions on their way to holders occupy slots and free them when they have arrived."""


def await_slot(job: Job) -> None:
    """Waits for a slot if this version has to be handed over, which is impossible without a capture of it."""
    core = job.session.core
    if core.captures_to_stand:
        job.session.wait(
            lambda: core.has_slots or core.is_aborted or not core.captures_to_stand or None, timeout_s=SLOT_WAIT_S
        )


def stop_if_asked(job: Job) -> bool:
    """Whether this rank had to stop here. Then the caller has to check the abort flag and all else again."""
    session, core = job.session, job.session.core
    if not core.must_stand:
        return False
    number = job.number
    job.capturer.finish()  # the captured version is declared, and was observed to be complete
    session.send(Standing(generation=core.generation, rank=session.rank, number=number))
    session.wait(lambda: core.is_aborted or not core.must_stand or None)
    return True
