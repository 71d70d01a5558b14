"""A stop between two steps that the coordinator asked for, so that ranks change their node with nothing done twice.

All ranks capture the version at which they stop. How it goes on, with a fence or with the next step, is said by others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool.protocol.messages import Standing

if TYPE_CHECKING:
    from deadpool.trainer.job import Job

SLOT_WAIT_S = 30.0
"""For a slot: versions on their way to holders keep slots, and free them as soon as they are there."""


def await_slot(job: Job) -> None:
    """A version that is passed over for want of a slot could not be handed over; and nobody is in a hurry here."""
    core = job.session.core
    if core.captures_to_stand:
        job.session.wait(
            lambda: core.has_slots or core.is_aborted or not core.captures_to_stand or None, timeout_s=SLOT_WAIT_S
        )


def stood(job: Job) -> bool:
    """Whether this rank had to stop here; then everything has to be looked at anew."""
    session, core = job.session, job.session.core
    if not core.must_stand:
        return False
    number = job.number
    job.capturer.finish()  # what was captured is declared, and the version itself was seen complete
    session.send(Standing(generation=core.generation, rank=session.rank, number=number))
    session.wait(lambda: core.is_aborted or not core.must_stand or None)
    return True
