"""The way back after a fault, on the script's thread: from rest at the step boundary to Go.

    rest      the capture is joined, frameworks are reset, Halted is sent
    load      the state of the resume version is loaded from a slot, or kept without one       -> Prepared
              (loading.py loads what has arrived before it is complete)
    rebuild   every process group is built anew under the new generation                       -> Connected
    resume    at Go

`protocol/recovery_walk.py` decides what comes next; here each action is carried out. Where survivors do not keep their
processes (adapters/wrappers.py), or this one cannot rebuild its groups once more, the process ends before it rests and
another takes its place. A newer fence in any of these stages begins the walk again from rest.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NoReturn

from msgspec.structs import replace

from deadpool.errors import GroupError, GroupMissing, NotInPlace, OtherStructure
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Connect, Restore, Seat, SlotRef
from deadpool.protocol.recovery_walk import Load, LoadEarly, RebuildGroups, Resume
from deadpool.protocol.seal import Extent, Region
from deadpool.snapshot.arena.slot import read_seal
from deadpool.snapshot.state import cures
from deadpool.trainer.adapters import negotiators
from deadpool.trainer.current import Restart, Superseded
from deadpool.trainer.process.environment import drain
from deadpool.trainer.recovery.loading import EarlyLoad, is_record_as_sealed, load_checked, load_what_arrives
from deadpool.trainer.shares.layout import present_members

if TYPE_CHECKING:
    from deadpool.trainer.job import Job

_GRANT_WAIT_S = 0.5
_NEWER_PLAN_S = 30.0


def come_back(job: Job) -> None:
    """Comes back from an aborted step to the next one that counts."""
    session = job.session
    session.emit("unwound")
    job.step_reports.unwound()
    job.capturer.cancel()
    drain()
    session.leave_if_device_broke()  # before a plan counts on anything that lies on the device
    _restart_if_it_cannot_go_on(job)
    session.recording_schedule.unwound()
    _reset_or_restart(job)
    job.state.drain()  # nothing of the step that was cut off may still write when the state is put back
    _mark_dirty_if_touched(job)
    while True:
        _rest(job)
        try:
            walk(job, session.walk.generation)
            return
        except OtherStructure as error:  # of a version before a step in which the script changed its parameters
            restart(job, str(error))
        except GroupMissing as error:  # destroyed in the step that was cut off: only a fresh process makes it
            restart(job, str(error))
        except Superseded:
            continue


def _restart_if_it_cannot_go_on(job: Job) -> None:
    if not job.in_place:
        restart(job, "survivors do not keep their processes")
    if not job.session.groups.can_rebuild:
        restart(job, "its groups cannot be rebuilt once more")
    if job.cannot_redo is not None:
        restart(job, job.cannot_redo)
    if job.state.has_other_names:
        restart(job, "the step that was cut off has added or removed parameters or modules")
    if job.has_other_shards:
        restart(job, "the step that was cut off has given fully_shard other parameters")
    if any(a.dry_steps_change_numerics and 0 < job.number < a.dry_steps for a in job.adapters):
        restart(job, f"step {job.number} can be redone only by a process that has run no other")


def _reset_or_restart(job: Job) -> None:
    """Where a library keeps something else than its adapter knows, only a process that was not cut off is certain."""
    try:
        for adapter in job.adapters:
            adapter.reset()
    except (AttributeError, TypeError) as error:
        restart(job, f"what a step left behind cannot be reset: {type(error).__name__}: {error}")


def restart(job: Job, reason: str) -> NoReturn:
    """The agent sees that this process ends under the fence, and starts another."""
    job.session.emit("trainer_restarts", reason=reason)
    raise Restart


def _mark_dirty_if_touched(job: Job) -> None:
    """A script may have written into its parameters before any optimizer stepped, or without one. Such a rank does not
    stand at the start of its step and takes its state from a snapshot."""
    if not job.state.is_as_recorded:
        with job.session.changed:
            job.session.core.restoring()


def _rest(job: Job) -> None:
    session = job.session
    with session.changed:
        halted = session.walk.rest()
        session.forward_stop.end()
    session.unwind_watch.end(halted.generation)
    session.send(halted)


def walk(job: Job, generation: Generation) -> None:
    """Walks from rest to Go. It raises Superseded if a newer generation began meanwhile."""
    session = job.session
    with session.changed:
        session.walk.begin(generation)
        stood_at = session.core.live if session.core.clean else None
    early: EarlyLoad | None = None
    while True:
        match session.next_action():
            case LoadEarly():
                early = load_what_arrives(job, generation)
            case Load(restore=restore):
                _restore(job, restore, early, kept=restore.version == stood_at and early is None)
            case RebuildGroups(connect=connect):
                _rebuild(job, connect)
            case Resume(restore=restore):
                resume(job, restore)
                return


# --- load ------------------------------------------------------------------------------------------------------------


def _restore(job: Job, restore: Restore, early: EarlyLoad | None, *, kept: bool = False) -> None:
    """`kept`: the process stood at the version, with its objects and their memory. It takes the bytes from a sealed
    copy all the same, as a script may have written in ways that torch does not count (rule 9, clean live state)."""
    session = job.session
    if kept and cures.is_off("D3"):
        restore = replace(restore, slot=None)
    early_bytes = stand_at(job, restore, early)
    _carry(job, restore)
    agreement = " ".join(each.agreement() for each in negotiators(job.adapters))
    with session.changed:
        prepared = session.walk.loaded(session.store_address, agreement)
        session.core.carry(rank for rank, _ in restore.carried)
    loaded = restore.slot is not None
    session.emit(
        "restored",
        step=restore.version.number,
        survived=job.is_in_loop,
        kept=kept,
        loaded=loaded,
        early_bytes=early_bytes,
    )
    if prepared is None:
        raise Superseded
    session.send(prepared)


def _carry(job: Job, restore: Restore) -> None:
    """Rule 30, carried ranks: their records come from their own copies, at the same version."""
    records: dict[int, bytes] = {}
    for rank, ref in restore.carried:
        slot, geometry = job.session.slot(ref)
        seal = read_seal(slot)
        if seal is None or seal.version != restore.version:
            _leave_for_newer_plan(job, restore.generation)
        if not is_record_as_sealed(slot, geometry, seal):
            _report_damaged(job, restore, "record", rank)
        records[rank] = _record_of(slot, geometry.offset("record"), seal.extent)
    job.shares.carry(records)
    job.carried_records = records


def stand_at(job: Job, restore: Restore, early: EarlyLoad | None = None) -> int:
    """Loads or keeps the state of the version. Returns how many bytes were loaded before the snapshot was complete."""
    early_bytes = 0
    try:
        if restore.slot is None:
            job.state.restore_record(job.record)
        else:
            early_bytes = _load(job, restore, restore.slot, early)
        for adapter in job.adapters:
            adapter.seated(restore.version.number)
        job.state.restore_gradients()
    except NotInPlace as error:
        restart(job, str(error))
    return early_bytes


def _load(job: Job, restore: Restore, ref: SlotRef, early: EarlyLoad | None) -> int:
    """Returns how many bytes were loaded before the snapshot was complete."""
    version = restore.version
    slot, geometry = job.session.slot(ref)
    seal = read_seal(slot)
    if seal is None or seal.version != version:
        _leave_for_newer_plan(job, restore.generation)
    early_bytes = 0
    if early is not None and early.is_of(ref, seal):
        early_bytes = early.finish()
    elif (damaged := load_checked(job.state, slot, geometry, seal)) is not None:
        _report_damaged(job, restore, damaged)
    with job.session.changed:
        job.session.core.declare(geometry)  # the agent need not be told: the slot is its own
    job.record = _record_of(slot, geometry.offset("record"), seal.extent)
    return early_bytes


def _leave_for_newer_plan(job: Job, generation: Generation) -> NoReturn:
    """A newcomer is not told of a fence. Its slot is another version's only if a newer plan went back further than this
    one: the next seat is on its way."""
    session = job.session

    def is_superseded() -> bool | None:
        role = session.role
        return session.core.is_aborted or (isinstance(role, Seat) and role.generation > generation) or None

    assert session.wait(is_superseded, timeout_s=_NEWER_PLAN_S), f"the snapshot of {generation} is not in its slot"
    raise Superseded


def _report_damaged(job: Job, restore: Restore, region: Region, rank: int | None = None) -> NoReturn:
    """There will be another plan, with another source: this walk ends when its generation does."""
    session = job.session
    session.emit("damaged_copy_found", step=restore.version.number, region=region)
    with session.changed:
        damaged = session.walk.damaged()
    session.send(damaged if rank is None else replace(damaged, rank=rank))
    action = session.next_action()
    raise AssertionError(f"{action} after a damaged copy")


def _record_of(slot: memoryview, start: int, extent: Extent) -> bytes:
    return bytes(slot[start : start + extent.record_bytes])


# --- rebuild ---------------------------------------------------------------------------------------------------------


def _rebuild(job: Job, connect: Connect) -> None:
    session = job.session
    if not connect.agreed:
        for each in negotiators(job.adapters):
            each.renegotiate()
    _rebuild_groups(job, connect)
    with session.changed:
        connected = session.walk.connected()
    if connected is None:
        raise Superseded
    session.send(connected)


def _rebuild_groups(job: Job, connect: Connect) -> None:
    """A peer that dies now is a fault of its own: the fence that follows ends the waiting."""
    session = job.session
    seen = session.groups.abort_count
    if session.core.is_aborted:
        raise Superseded
    try:
        store = session.rendezvous(connect.store, connect.generation)
        members = functools.partial(present_members, carried=dict(connect.carried))
        session.groups.rebuild(store, "groups", after_abort=seen, members=members)
        job.shares.sync.count_all_ranks(bool(connect.carried))
    except (GroupError, RuntimeError) as error:
        session.leave_if_device_broke()
        session.emit("rebuild_failed", reason=str(error))
        session.await_halt(None)
        raise Superseded from error
    session.emit("rebuilt")


# --- resume ----------------------------------------------------------------------------------------------------------


def resume(job: Job, restore: Restore) -> None:
    session, number = job.session, restore.version.number
    session.pending_injections.recovered()
    session.recording_schedule.attached(number)
    for adapter in job.adapters:
        adapter.resumed()
    job.state.forget_first_structure()
    job.resume(number)
    job.shares.report()  # a newcomer has rehearsed with them
    if restore.capture:
        _capture_again(job)


def _capture_again(job: Job) -> None:
    """This rank has no sealed copy of the version it stands at. Slots are granted right after Go."""
    session = job.session
    session.wait(lambda: session.core.has_slots or None, timeout_s=_GRANT_WAIT_S)
    job.take_snapshot()
