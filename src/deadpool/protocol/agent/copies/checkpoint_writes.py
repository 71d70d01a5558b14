"""A node's part in a durable checkpoint: its own ranks' copies of a committed version go to the store.

Slots are only held while they are copied into memory of their own, so a slow store holds no slot. The write goes on
through fences and recoveries, because what it writes was committed.
"""

from __future__ import annotations

from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.recorded_collectives import NodeRecordings
from deadpool.protocol.effects import CompleteCheckpoint, EndWriter, WritePart
from deadpool.protocol.inputs import CheckpointFinished, PartWritten, Staged
from deadpool.protocol.messages import (
    AbandonCheckpoint,
    CheckpointDone,
    CheckpointPart,
    Copy,
    FinishCheckpoint,
    Recording,
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
