"""A node's part in a durable checkpoint: its own ranks' copies of a committed version go to the store.

Slots are only held while they are copied into memory of their own, so a slow store holds no slot. The write goes on
through fences and recoveries, because what it writes was committed.

What the script has said of a checkpoint of its own is kept here too, for every coordinator to come.
"""

from __future__ import annotations

from deadpool.protocol.agent.seams import AgentCore, AgentPart
from deadpool.protocol.agent.trainers.trainers import Trainer, TrainerState
from deadpool.protocol.effects import CompleteCheckpoint, EndWriter, WritePart
from deadpool.protocol.identity import FeatureMessage
from deadpool.protocol.inputs import CheckpointFinished, FeatureInput, PartWritten, Staged
from deadpool.protocol.messages import (
    AbandonCheckpoint,
    CheckpointDone,
    CheckpointPart,
    Copy,
    Durable,
    FinishCheckpoint,
    Recording,
    WriteCheckpoint,
)


class NodeWrites(AgentPart):
    def __init__(self, core: AgentCore) -> None:
        self._state, self._seating, self._recordings = core.state, core.seating, core.recordings
        self._copies: dict[str, tuple[Copy, ...]] = {}  # by checkpoint that is being written
        self._of_script: Durable | None = None  # the newest checkpoint that the script reported

    # --- from the coordinator ----------------------------------------------------------------------------------------

    def on_order(self, order: FeatureMessage) -> None:
        match order:
            case WriteCheckpoint() if not self._state.current.is_fenced and self._seating.plan is not None:
                self._write(order, tuple(each.rank for each in self._seating.plan.orders))
            case FinishCheckpoint(name=name, number=number, copies=copies):
                self._state.effects.append(CompleteCheckpoint(name=name, number=number, copies=copies))
            case AbandonCheckpoint(name=name):
                self._copies.pop(name, None)
                self._state.effects.append(EndWriter(name=name))
            case _:
                pass  # another feature's, or this node is fenced meanwhile

    def _write(self, order: WriteCheckpoint, ranks: tuple[int, ...]) -> None:
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

    def on_welcome(self) -> None:
        if self._of_script is not None:
            self._state.tell_coordinator(self._of_script)

    # --- from the data plane -----------------------------------------------------------------------------------------

    def on_input(self, input: FeatureInput, now: float) -> None:
        match input:
            case Staged(slots=slots):
                self._state.copies.unpin(slots)
                self._seating.grant_slots()
            case PartWritten():
                self._on_part_written(input)
            case CheckpointFinished(name=name, bytes_written=count, failure=failure):
                self._state.tell_coordinator(CheckpointDone(name=name, bytes_written=count, failure=failure))
            case _:
                pass  # another feature's

    def _on_part_written(self, written: PartWritten) -> None:
        copies = self._copies.pop(written.name, None)
        if copies is not None:
            part = CheckpointPart(
                name=written.name,
                copies=copies if not written.failure else (),
                bytes_written=written.bytes_written,
                failure=written.failure,
            )
            self._state.tell_coordinator(part)

    # --- from trainers -----------------------------------------------------------------------------------------------

    def on_trainer_message(self, trainer: Trainer, message: FeatureMessage) -> None:
        if isinstance(message, Durable) and trainer.state is TrainerState.SEATED and trainer.rank is not None:
            self._of_script = message
            self._state.tell_coordinator(message)


def pack_recording(recording: Recording) -> bytes:
    """Packs a recording as a checkpoint keeps it. The generation that it was made in is of no use to another job."""
    return bytes([recording.complete]) + recording.book
