"""Where the coordinator meets durable checkpoints.

`Checkpoints`: a job that has lost every copy of a rank, or begins anew, goes back to the newest complete one; and what
is committed when all ranks have ended is written before the job ends.

`CheckpointNews`: what nodes and people say of checkpoints, the time that writes take, and what status shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deadpool.protocol.causes import Checkpoint
from deadpool.protocol.coordinator.job import JobState
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.recovery.fallback import Fallback
from deadpool.protocol.coordinator.seams import CoordinatorCore, CoordinatorPart
from deadpool.protocol.features.durable.coordinator.known import KnownCheckpoints
from deadpool.protocol.features.durable.coordinator.writes import Writes
from deadpool.protocol.identity import FeatureMessage
from deadpool.protocol.inputs import CheckpointAsked, CheckpointFound, FeatureInput
from deadpool.protocol.messages import CheckpointDone, CheckpointPart, Durable

READ_S = 1800.0
"""How much longer nodes may take to prepare where the state of all ranks is read from a checkpoint."""


class Checkpoints(Fallback):
    read_s = READ_S

    def __init__(self, job: JobState) -> None:
        self.known = KnownCheckpoints(job)
        self.writes = Writes(job, self.known)

    @property
    def newest(self) -> Checkpoint | None:
        return self.known.newest

    @property
    def recordings(self) -> Sequence[bytes]:
        return self.known.newest.recordings if self.known.newest is not None else ()

    def on_unread(self, name: str, reason: str) -> str | None:
        return self.known.on_unread(name, reason)

    def advice(self) -> str:
        return self.known.advice()

    def keep_last(self) -> None:
        if self.writes.is_wanted:
            self.writes.ask()

    @property
    def is_busy(self) -> bool:
        return self.writes.is_writing


class CheckpointNews(CoordinatorPart):
    def __init__(self, core: CoordinatorCore) -> None:
        assert isinstance(core.fallback, Checkpoints)
        self.known, self.writes = core.fallback.known, core.fallback.writes

    def on_message(self, member: Member, message: FeatureMessage, now: float) -> None:
        match message:
            case CheckpointPart():
                self.writes.on_part(member.node, message, now)
            case CheckpointDone():
                self.writes.on_done(member.node, message, now)
            case Durable():
                self.known.on_saved_by_script(message)
            case _:
                pass  # another feature's

    def on_input(self, input: FeatureInput) -> None:
        match input:
            case CheckpointAsked():
                self.writes.ask()
            case CheckpointFound(checkpoint=checkpoint):
                self.known.on_found(checkpoint)
            case _:
                pass  # another feature's

    def on_request(self, what: str, arguments: Mapping[str, object]) -> FeatureInput | str | None:
        if what != "durable":
            return None
        refusal = self.writes.refusal()
        return CheckpointAsked() if refusal is None else f"no checkpoint can be written: {refusal}"

    def follow(self, before: CoordinatorPart) -> None:
        if not isinstance(before, CheckpointNews):
            return
        if before.known.newest is not None:
            self.known.on_found(before.known.newest)
        self.known.of_script = before.known.of_script

    # --- time ---------------------------------------------------------------------------------------------------------

    def conclude(self, now: float) -> None:
        self.writes.advance(now)

    def deadline(self) -> float | None:
        return self.writes.deadline()

    def discount_stall(self, seconds: float) -> None:
        self.writes.discount_stall(seconds)

    # --- for status ---------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, object]:
        written, saved, failing = self.known.newest, self.known.of_script, self.writes.failing
        return {
            "checkpoint": {"step": written.number, "name": written.name} if written is not None else None,
            "checkpoint_failing": {"attempts": failing[0], "reason": failing[1]} if failing is not None else None,
            "durable": {"step": saved.step, "path": saved.path} if saved is not None else None,
        }
