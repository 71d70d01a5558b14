"""What the data plane has done, and a node's part in durable checkpoints.

`DataNews`: what a node's data plane has finished, and what other nodes ask of it.

`CheckpointWrites`: a node's part in a durable checkpoint: its own ranks' copies of a committed version go to the
store.

Slots are only held while they are copied into memory of their own, so a slow store holds no slot. The write goes on
through fences and recoveries, because what it writes was committed.
"""

from __future__ import annotations

from typing import assert_never

from deadpool.protocol.agent.leadership.heartbeat import Heartbeats
from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.readiness import NodeRecordings
from deadpool.protocol.agent.trainers.seating import Seating
from deadpool.protocol.agent.trainers.unwinding import Unwinding
from deadpool.protocol.causes import FaultKind
from deadpool.protocol.effects import CompleteCheckpoint, EndWriter, WritePart
from deadpool.protocol.inputs import (
    Allocated,
    AllocationFailed,
    CheckpointFinished,
    DataInput,
    Fetched,
    FetchFailed,
    Hashed,
    Offered,
    PartWritten,
    Pushed,
    PushFailed,
    Received,
    ReceiveFailed,
    SourceDamaged,
    Staged,
    StreamsCut,
    WrittenOut,
)
from deadpool.protocol.messages import (
    AbandonCheckpoint,
    CheckpointDone,
    CheckpointPart,
    Copy,
    CopyLost,
    FinishCheckpoint,
    Recording,
    Salvaged,
    WriteCheckpoint,
)


class CheckpointWrites:
    def __init__(self, state: AgentState, recordings: NodeRecordings) -> None:
        self._state, self._recordings = state, recordings
        self._copies: dict[str, tuple[Copy, ...]] = {}  # by checkpoint that is being written

    def write(self, order: WriteCheckpoint, ranks: tuple[int, ...]) -> None:
        found = self._state.copies.pin_own(ranks, order.version)
        if found is None:
            reason = f"a copy of {order.version} is gone"
            self._state.tell_coordinator(CheckpointPart(name=order.name, copies=(), bytes_written=0, failure=reason))
            return
        self._copies[order.name] = tuple(copy for _, copy in found)
        parts = tuple((ref, copy, self._recording(copy.seal.rank)) for ref, copy in found)
        self._state.effects.append(WritePart(name=order.name, generation=order.generation, copies=parts))

    def _recording(self, rank: int) -> bytes:
        recording = self._recordings.of(rank)
        return pack_recording(recording) if recording is not None else b""

    def finish(self, order: FinishCheckpoint) -> None:
        self._state.effects.append(CompleteCheckpoint(name=order.name, number=order.number, copies=order.copies))

    def abandon(self, order: AbandonCheckpoint) -> None:
        self._copies.pop(order.name, None)
        self._state.effects.append(EndWriter(name=order.name))

    # --- from the data plane -----------------------------------------------------------------------------------------

    def on_staged(self, staged: Staged) -> None:
        self._state.copies.unpin(staged.slots)

    def on_part_written(self, written: PartWritten) -> None:
        copies = self._copies.pop(written.name, None)
        if copies is not None:
            part = CheckpointPart(
                name=written.name,
                copies=copies if not written.failure else (),
                bytes_written=written.bytes_written,
                failure=written.failure,
            )
            self._state.tell_coordinator(part)

    def on_finished(self, finished: CheckpointFinished) -> None:
        done = CheckpointDone(name=finished.name, bytes_written=finished.bytes_written, failure=finished.failure)
        self._state.tell_coordinator(done)


def pack_recording(recording: Recording) -> bytes:
    """Packs a recording as a checkpoint keeps it. The generation that it was made in is of no use to another job."""
    return bytes([recording.complete]) + recording.book


class DataNews:
    def __init__(
        self,
        state: AgentState,
        *,
        unwinding: Unwinding,
        seating: Seating,
        checkpoints: CheckpointWrites,
        heartbeats: Heartbeats,
    ) -> None:
        self._state, self._copies, self._checkpoints = state, state.copies, checkpoints
        self._unwinding, self._seating, self._heartbeats = unwinding, seating, heartbeats

    def on_input(self, input: DataInput) -> None:
        """Any of these may have freed a slot or begun a fetch, so trainers are told of both."""
        self._apply(input)
        self._seating.grant_slots()
        self._seating.announce_arrivals()

    def _apply(self, input: DataInput) -> None:
        state, copies, generation = self._state, self._copies, self._state.current.generation
        match input:
            case Allocated(segment=segment):
                copies.on_allocated(segment)
            case AllocationFailed(segment=segment, reason=reason):
                copies.on_allocation_failed(segment, reason)
                state.emit("arena_full", reason=reason)
            case Hashed(slot=slot, digest=digest):
                copies.on_hashed(slot, digest)
                self._unwinding.acknowledge_if_frozen()
            case Pushed(rank=rank, node=node, version=version, seconds=seconds):
                copies.on_push_ended(rank, node, version, None)
                self._heartbeats.on_sent(rank, node, seconds)
            case PushFailed(rank=rank, node=node, version=version, reason=reason):
                copies.on_push_ended(rank, node, version, input)
                state.emit("push_failed", rank=rank, step=version.number, holder=node, reason=reason)
            case Fetched(rank=rank, slot=slot, copy=copy):
                if copies.on_fetched(slot, copy):
                    self._seating.on_snapshot(rank)
            case FetchFailed(rank=rank, slot=slot, reason=reason, checkpoint=checkpoint):
                if (unread := copies.arrivals.on_fetch_failed(slot)) is not None:
                    why = f"no source gave the snapshot of rank {rank}: {reason}"
                    self._seating.report_lost(rank, FaultKind.UNREAD, why, unread=unread, checkpoint=checkpoint)
            case StreamsCut(generation=cut):
                self._unwinding.on_streams_cut(cut)
            case Offered():
                copies.on_offered(input)
            case Received(slot=slot, copy=copy, bytes_received=count):
                copies.on_received(slot, copy, count)
            case ReceiveFailed(slot=slot, rank=rank):
                copies.on_receive_failed(slot, rank)
            case SourceDamaged(node=node, rank=rank, version=version, group=group):
                damaged = CopyLost(generation=generation, node=node, rank=rank, version=version, group=group)
                state.tell_coordinator(damaged)
            case Staged():
                self._checkpoints.on_staged(input)
            case PartWritten():
                self._checkpoints.on_part_written(input)
            case CheckpointFinished():
                self._checkpoints.on_finished(input)
            case WrittenOut(ranks=ranks, folder=folder, failure=failure):
                state.tell_coordinator(Salvaged(generation=generation, ranks=ranks, folder=folder, failure=failure))
            case _ as never:
                assert_never(never)
