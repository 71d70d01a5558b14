"""A spare's rehearsal of a rank, and the memory that it gives back while it is parked.

`run`: what a spare does inside the user's loop: it runs dry steps under fake groups, then parks until it is seated.

`free_if_wanted` and `allocate`: what a parked trainer gives back with --parked-state free: the memory of its
parameters and optimizer state, until it is seated. What it held was never the job's: a newcomer loads a snapshot
over all of it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from deadpool.config.environment import PARKED_STATE_VARIABLE
from deadpool.errors import GroupMissing
from deadpool.host.notes import note
from deadpool.protocol.messages import Failed, Parked, Rehearse, Seat
from deadpool.snapshot.state.freed_state import FreedState
from deadpool.trainer.current import Superseded
from deadpool.trainer.process import forked_child
from deadpool.trainer.recovery import recovery
from deadpool.trainer.step import DryStep

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


class _DryStepFailed(Exception):
    pass


def run(job: Job) -> Iterator[DryStep]:
    """Yields dry steps, then returns at Go with the rank's state loaded, at the step where the lost rank stopped."""
    session = job.session
    rank = session.rank
    session.recording_schedule.enter_loop()
    session.file_guard.enter_dry_steps()
    rehearsed = _dry_step_count(job)
    yield from _dry_steps(job, rehearsed)
    if isinstance(session.role, Rehearse):
        session.groups.warm_up()
        taken = torch.cuda.memory_reserved() if torch.cuda.is_initialized() else 0
        session.send(Parked(rank=rank, geometry=job.state.measure(), device_bytes=taken))
        session.emit("rehearsed")
    freed = free_if_wanted(job) if isinstance(session.role, Rehearse) else None
    while True:
        seat = _await_seat(job, rank)
        allocate(job, freed)
        freed = None
        with session.changed:
            session.core.take_seat(seat.generation, seat.rank, seat.schedule)
        session.emit("built")
        try:
            yield from _walk(job, seat, rehearsed)
            return
        except Superseded:
            if session.core.is_aborted:
                recovery.come_back(job)
                return


def _walk(job: Job, seat: Seat, rehearsed: int) -> Iterator[DryStep]:
    """Where dry steps were left out, a group may be missing that other ranks made in their first step."""
    try:
        recovery.walk(job, seat.generation)
    except GroupMissing:
        assert seat.resume is not None
        if rehearsed >= max(1, min(_full_rehearsal(job), seat.resume.number)):
            raise
        yield from _dry_steps(job, _full_rehearsal(job))
        recovery.walk(job, seat.generation)


def _dry_steps(job: Job, count: int) -> Iterator[DryStep]:
    job.set_dry(True)
    for number in range(count):
        step = DryStep(job, number)
        with contextlib.suppress(_DryStepFailed), contextlib.ExitStack() as stack:
            for adapter in job.adapters:
                stack.enter_context(adapter.rehearsing())
            try:
                yield step
            except GeneratorExit:
                if forked_child.is_child():
                    raise
                _end_here(job, number)
            if step.error is not None:
                raise _DryStepFailed  # so that adapters see that the step failed
        if step.error is not None:
            job.session.leave_if_device_broke()
            job.session.emit("dry_step_failed", reason=step.error)
            break
    for adapter in job.adapters:
        adapter.reset()
    job.set_dry(False)


def _end_here(job: Job, number: int) -> None:
    """The script has left its loop in a dry step, because of a result that is garbage. A rehearsal must not do what
    comes after the loop, such as saving a model; and an exception cannot leave an iterator that is being closed."""
    text = f"the script left its loop in dry step {number}, whose results are garbage: leave it only `if not step.dry`"
    note(text)
    job.session.send(Failed(error=text))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _dry_step_count(job: Job) -> int:
    """A rehearsal has time to warm up. While survivors wait, only the dry steps that exactness needs are run."""
    match job.session.role:
        case Seat(resume=resume) if resume is not None:
            needed = (min(a.dry_steps, resume.number) for a in job.adapters if a.dry_steps_change_numerics)
            return max(needed, default=0)
        case _:
            return _full_rehearsal(job)


def _full_rehearsal(job: Job) -> int:
    return max((adapter.dry_steps for adapter in job.adapters), default=0)


def _await_seat(job: Job, rank: int) -> Seat:
    """A process that rehearses is never given another rank: where the rehearsal was in vain, the agent ends it."""
    session = job.session
    role = session.wait(lambda: session.role if isinstance(session.role, Seat) else None)
    assert isinstance(role, Seat) and role.rank == rank and role.resume is not None, (rank, role)
    return role
