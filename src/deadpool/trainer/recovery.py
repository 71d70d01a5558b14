"""The way back after a fault, on the script's thread: from rest at the step boundary to Go.

    rest      capture joined, frameworks reset, Halted
    restore   stand at the resume version: keep the device memory, or load it from a slot -> Prepared
              (while it arrives there, early_load.py)
    rebuild   every group under the new generation                                        -> Connected
    go

Where survivors do not keep their processes (adapters/versions.py), or this one cannot rebuild its groups once more, the
walk ends before its first stop, and so does the process. A newer fence in any of these begins the walk again from rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from deadpool.errors import GroupError, GroupMissing, NotInPlace
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Connect, Connected, Go, Halted, Prepared, Restore, SlotRef, Spoilt
from deadpool.protocol.seal import Extent, Region
from deadpool.snapshot.slot import read_seal
from deadpool.trainer.adapters import negotiators
from deadpool.trainer.checked_load import load_checked
from deadpool.trainer.control_flow import Restart, Superseded
from deadpool.trainer.device import drain
from deadpool.trainer.early_load import EarlyLoad, load_what_arrives

if TYPE_CHECKING:
    from deadpool.trainer.job import Job

_GRANT_WAIT_S = 0.5


def come_back(job: Job) -> None:
    """From an aborted step to the next one that counts."""
    session = job.session
    session.emit("unwound")
    job.step_log.tell()
    job.capturer.cancel()
    drain()
    session.leave_if_device_broke()  # before anything on it is promised to a plan
    if not job.in_place:
        restart(job, "survivors do not keep their processes")
    if not session.groups.can_rebuild:
        restart(job, "its groups cannot be rebuilt once more")
    if job.cannot_redo is not None:
        restart(job, job.cannot_redo)
    session.recording_schedule.unwound()
    for adapter in job.adapters:
        adapter.reset()
    job.state.drain()  # nothing of the step that was cut off may still write when the state is put back
    _own_up(job)
    while True:
        with session.changed:
            generation, live = session.core.aborted, session.core.rest()
        session.unwind_watch.end(generation)
        session.send(Halted(generation=generation, live=live))
        try:
            walk(job, generation)
            return
        except GroupMissing as error:  # destroyed in the step that was cut off: whoever begins anew makes it
            restart(job, str(error))
        except Superseded:
            continue


def restart(job: Job, reason: str) -> NoReturn:
    """The agent takes the end of this process under the fence for what it is, and starts another."""
    job.session.emit("trainer_restarts", reason=reason)
    raise Restart


def _own_up(job: Job) -> None:
    """A script may have written into its parameters before any optimizer stepped, or without one: a rank that counts as
    standing at the start of its step does not, and takes its state from a snapshot."""
    if not job.state.is_untouched:
        with job.session.changed:
            job.session.core.restoring()


def walk(job: Job, generation: Generation) -> None:
    """From rest to Go. Superseded: a newer generation began meanwhile."""
    session = job.session
    early = load_what_arrives(job, generation)
    restore = session.expect(Restore, generation)
    try:
        _stand_at(job, restore, generation, early)
    except NotInPlace as error:
        restart(job, str(error))
    session.send(
        Prepared(
            generation=generation,
            rank=session.rank,
            store=session.store_address,
            agreement=" ".join(each.agreement() for each in negotiators(job.adapters)),
        )
    )
    connect = session.expect(Connect, generation)
    if not connect.agreed:
        for each in negotiators(job.adapters):
            each.renegotiate()
    _rebuild(job, connect)
    session.send(Connected(generation=generation, rank=session.rank))
    session.expect(Go, generation)
    session.pending_injections.recovered()
    session.recording_schedule.attached(restore.version.number)
    job.resume(restore.version.number)
    if restore.capture:
        _capture_again(job)


def _stand_at(job: Job, restore: Restore, generation: Generation, early: EarlyLoad | None) -> None:
    session = job.session
    with session.changed:
        session.core.restoring()
    early_bytes = 0
    if restore.slot is None:
        job.state.restore_record(job.record)
    else:
        early_bytes = _load(job, restore, restore.slot, early)
    for adapter in job.adapters:
        adapter.seated(restore.version.number)
    job.state.restore_gradients()
    with session.changed:
        session.core.restored(generation, restore.version, restore.schedule)
    session.emit("restored", step=restore.version.number, kept=restore.slot is None, early_bytes=early_bytes)


def _load(job: Job, restore: Restore, ref: SlotRef, early: EarlyLoad | None) -> int:
    """Returns how much of it had been loaded before it was complete."""
    version = restore.version
    slot, geometry = job.session.slot(ref)
    seal = read_seal(slot)
    assert seal is not None and seal.version == version, (seal, version)
    early_bytes = 0
    if early is not None and early.is_of(ref, seal):
        early_bytes = early.finish()
    elif (spoilt := load_checked(job.state, slot, geometry, seal)) is not None:
        _report_spoilt(job, restore, spoilt)
    with job.session.changed:
        job.session.core.declare(geometry)  # the agent knows: the slot is its own
    job.record = _record_of(slot, geometry.offset("record"), seal.extent)
    return early_bytes


def _report_spoilt(job: Job, restore: Restore, spoilt: Region) -> None:
    """There will be another plan, with another source."""
    session = job.session
    session.emit("corrupt_copy_found", step=restore.version.number, region=spoilt)
    session.send(Spoilt(generation=restore.generation, node="", rank=session.rank, version=restore.version))
    session.expect(Connect, restore.generation)  # does not come: Superseded


def _record_of(slot: memoryview, start: int, extent: Extent) -> bytes:
    return bytes(slot[start : start + extent.record_bytes])


def _rebuild(job: Job, connect: Connect) -> None:
    """A peer that dies now is a fault of its own: the fence that says so ends the waiting."""
    session = job.session
    seen = session.groups.abort_count
    if session.core.is_aborted:
        raise Superseded
    try:
        store = session.rendezvous(connect.store, connect.generation)
        session.groups.rebuild(store, "groups", after_abort=seen)
    except (GroupError, RuntimeError) as error:
        session.leave_if_device_broke()
        session.emit("rebuild_failed", reason=str(error))
        session.await_halt(None)
        raise Superseded from error
    session.emit("rebuilt")


def _capture_again(job: Job) -> None:
    """This rank has no sealed copy of the version it stands at. Slots are granted right after Go."""
    session = job.session
    session.wait(lambda: session.core.has_slots or None, timeout_s=_GRANT_WAIT_S)
    job.take_snapshot()
