"""Which complete checkpoints this job may go back to, and what the script has said of one of its own."""

from __future__ import annotations

from deadpool.protocol.causes import Checkpoint
from deadpool.protocol.coordinator.job import JobState
from deadpool.protocol.messages import Durable

READ_ATTEMPTS = 3
"""Recoveries that may fail because one checkpoint cannot be read. A store may fail for a moment, but damage stays."""
OLDER_ONES = 2
"""Older checkpoints that are remembered beside the newest one."""


class KnownCheckpoints:
    def __init__(self, job: JobState) -> None:
        self._job = job
        self.newest: Checkpoint | None = None  # complete, and this job may go back to it
        self._older: list[Checkpoint] = []  # as complete: where the newest turns out to be damaged, the first of them
        self.last_number = 0  # only a newer version is worth a write
        self._unread: dict[str, int] = {}  # how often a recovery failed because a checkpoint could not be read
        self.of_script: Durable | None = None  # the newest one that the script has saved itself

    def on_found(self, checkpoint: Checkpoint) -> None:
        self._add(checkpoint)
        if self.newest is checkpoint:
            self.last_number = max(self.last_number, checkpoint.number)
            self._job.out.emit("checkpoint_found", step=checkpoint.number, name=checkpoint.name)

    def on_written(self, checkpoint: Checkpoint) -> None:
        self.last_number = checkpoint.number
        self._add(checkpoint)

    @property
    def _all(self) -> tuple[Checkpoint, ...]:
        """The newest one, then those before it."""
        return (self.newest, *self._older) if self.newest is not None else ()

    def _add(self, checkpoint: Checkpoint) -> None:
        known = [each for each in self._all if each.name != checkpoint.name] + [checkpoint]
        self.newest, *self._older = sorted(known, key=lambda each: each.number, reverse=True)[: 1 + OLDER_ONES]

    def on_unread(self, name: str, reason: str) -> str | None:
        """A rank's state could not be read from the checkpoint that the plan goes back to. Returns why the job has to
        end; None: it is tried again, and at last with an older one."""
        self._unread[name] = self._unread.get(name, 0) + 1
        if self._unread[name] < READ_ATTEMPTS:
            return None
        if self._older and self.newest is not None and self.newest.name == name:
            damaged, self.newest = self.newest, self._older.pop(0)
            self.last_number = self.newest.number  # else none would be written before the damaged one's step
            self._job.out.emit("checkpoint_skipped", step=damaged.number, name=damaged.name, reason=reason)
            return None
        return (
            f"checkpoint {name} could not be read {READ_ATTEMPTS} times, the last time: {reason}; see what is damaged "
            "with `deadpool durable verify`; there is no older one to go back to"
        )

    # --- what the script has saved itself -----------------------------------------------------------------------------

    def on_saved_by_script(self, saved: Durable) -> None:
        if self.of_script is None or saved.step >= self.of_script.step:
            self.of_script = saved

    def advice(self) -> str:
        if self.of_script is None:
            return "restart from your last durable checkpoint (none was reported with job.durable(step, path))"
        return f"restart from the durable checkpoint after {self.of_script.step} steps: {self.of_script.path}"
