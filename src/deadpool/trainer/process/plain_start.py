"""How a rank resumes where nothing private of torch can be relied on (torch_check.py): the script begins again.

    seat      the rank's snapshot has come and is as it was sealed                            -> Prepared
              all ranks have theirs: they know where to meet                                  -> Connected, Go
    script    runs from its first line over torch's own groups, with all other ranks, as at the start of the job
    loop      a step or two are run that do not count, because frameworks settle in their first steps what sums
              depend on (DDP its buckets). Then the snapshot is loaded, and work goes on at its step

After Go no plan counts on this process before its first completed step: a fence ends it (session.py), and the snapshot
stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from deadpool.protocol.messages import Connect, Paused, Restore, Seat, TrainerMessage
from deadpool.protocol.recovery_walk import Load, LoadEarly, RebuildGroups, Resume
from deadpool.snapshot.arena.slot import read_seal
from deadpool.trainer.current import Superseded
from deadpool.trainer.recovery import recovery, unwinding
from deadpool.trainer.recovery.loading import find_damaged
from deadpool.trainer.step import DryStep

if TYPE_CHECKING:
    from deadpool.trainer.job import Job
    from deadpool.trainer.process.session import Session

SETTLING_STEPS = 2
"""The number of steps that DistributedDataParallel with a static graph takes to settle; nothing is known to take
longer.
"""


def take_seat(session: Session, seat: Seat) -> Connect:
    """Walks from the seat to Go. It raises Superseded if a newer generation began meanwhile."""
    with session.changed:
        session.core.take_seat(seat.generation, seat.rank, seat.schedule)
        session.walk.begin(seat.generation)
    connect: Connect | None = None
    while True:
        match session.next_action():
            case LoadEarly():
                pass  # there is nothing yet to load it into
            case Load(restore=restore):
                _prepare(session, restore)
            case RebuildGroups(connect=connect):
                _send(session, session.walk.connected)
            case Resume(restore=restore):
                assert connect is not None
                session.to_load = restore
                session.send(Paused(reason="the script begins again"))
                return connect


def _prepare(session: Session, restore: Restore) -> None:
    assert restore.slot is not None, restore
    slot, geometry = session.slot(restore.slot)
    seal = read_seal(slot)
    if seal is None or seal.version != restore.version:
        raise Superseded  # a newer plan went back further, and its seat is on its way
    if find_damaged(slot, geometry, seal) is not None:
        with session.changed:
            damaged = session.walk.damaged()
        session.send(damaged)  # there will be another plan, with another source
        return
    _send(session, lambda: session.walk.loaded(session.store_address))


def _send(session: Session, make: Callable[[], TrainerMessage | None]) -> None:
    with session.changed:
        report = make()
    if report is None:
        raise Superseded
    session.send(report)


def run(job: Job, restore: Restore) -> Iterator[DryStep]:
    """Runs at the head of the loop, and returns at the step where the lost rank stopped."""
    number = restore.version.number
    yield from _settle(job, min(SETTLING_STEPS, number))
    recovery.stand_at(job, restore)
    job.session.to_load = None
    job.session.emit("restored", step=number, survived=False, kept=False, loaded=True, early_bytes=0)
    job.session.send(Paused(reason=None))
    recovery.resume(job, restore)


def _settle(job: Job, count: int) -> Iterator[DryStep]:
    """Takes the first steps with real peers. They begin where the job began, and compute what its first steps did."""
    job.set_dry(True)
    for number in range(count):
        step = DryStep(job, number)
        yield step
        if step.error is not None:
            unwinding.await_fence(job)  # if a lost peer was the cause, the fence ends this process here
            raise RuntimeError(f"step {number} failed when the job was begun again: {step.error}")
    for adapter in job.adapters:
        adapter.reset()
    job.set_dry(False)
