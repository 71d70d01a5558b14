"""When a durable checkpoint is written, and which nodes have written their part.

A checkpoint is of the watermark, whose copies every rank has at home. It is written in the background, in two stages:
all nodes write their ranks' parts, then one of them writes metadata and manifest. It counts from then on, and not
before (rule 25, only complete checkpoints count). One is written at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from deadpool.protocol.causes import Checkpoint, DurableSettings
from deadpool.protocol.coordinator.job import JobState, Phase
from deadpool.protocol.features.durable.coordinator.known import KnownCheckpoints
from deadpool.protocol.identity import Version
from deadpool.protocol.messages import (
    AbandonCheckpoint,
    CheckpointDone,
    CheckpointPart,
    Copy,
    FinishCheckpoint,
    WriteCheckpoint,
)

RETRY_S = 60.0
"""The time after a failed write until the next; it is less where checkpoints are more frequent than that."""
LATE_SHARE = 0.1
"""The share of the time limit after which a write is reported, since its store may hang."""


@dataclass(slots=True)
class Write:
    name: str
    version: Version
    began: float
    pending: set[str]  # nodes whose part is not written
    copies: dict[int, Copy] = field(default_factory=dict)
    finisher: str | None = None
    is_late: bool = False

    @property
    def awaited(self) -> set[str]:
        return self.pending or ({self.finisher} if self.finisher is not None else set())


class Writes:
    def __init__(self, job: JobState, known: KnownCheckpoints) -> None:
        self._job, self._known = job, known
        self._settings: DurableSettings | None = job.settings.durable
        self._write: Write | None = None
        self._attempts = 0
        self._due_at: float | None = None  # None: the job has not run yet
        self._asked = False
        self._is_slow = False  # the last write took longer than the interval
        self._failures = 0  # in a row
        self._failure = ""  # of the last one
        self._is_awaited = False  # somebody has asked for one, and waits for what becomes of it

    # --- when ---------------------------------------------------------------------------------------------------------

    @property
    def is_writing(self) -> bool:
        return self._write is not None

    @property
    def is_wanted(self) -> bool:
        """A newer version than the last one written is committed, and could be written."""
        watermark = self._job.commits.permit.watermark
        is_newer = watermark is not None and watermark.number > self._known.last_number
        return self._settings is not None and self._job.commits.protected and is_newer

    def refusal(self) -> str | None:
        """Why no checkpoint can be asked for; None: one can."""
        return (
            None
            if self._settings is not None
            else "this job was started without --durable, which a new start with --durable changes"
        )

    @property
    def failing(self) -> tuple[int, str] | None:
        """Writes that failed since the last one that did not, and why the newest did; None: none has."""
        return (self._failures, self._failure) if self._failures else None

    def ask(self) -> None:
        self._asked = self._is_awaited = self._settings is not None

    def deadline(self) -> float | None:
        settings, write = self._settings, self._write
        if settings is None:
            return None
        if write is not None:
            return write.began + settings.timeout_s * (1.0 if write.is_late else LATE_SHARE)
        return self._due_at if settings.every_s and self._job.phase is Phase.RUNNING else None

    def discount_stall(self, seconds: float) -> None:
        if self._due_at is not None:
            self._due_at += seconds
        if self._write is not None:
            self._write.began += seconds

    def advance(self, now: float) -> None:
        """Checks the write under way, or begins one that is due, after every input."""
        if self._settings is None:
            return
        if self._write is not None:
            self._check(self._write, self._settings, now)
        elif self._job.phase is Phase.RUNNING:
            self._begin_if_due(self._settings, now)

    def _begin_if_due(self, settings: DurableSettings, now: float) -> None:
        if self._due_at is None:
            self._due_at = now + settings.every_s
        commits = self._job.commits
        watermark = commits.permit.watermark
        if watermark is None or not commits.protected or watermark.number <= self._known.last_number:
            if settings.every_s and now >= self._due_at:
                self._asked, self._due_at = True, now + settings.every_s  # as soon as there is something to write
            return
        by_time = settings.every_s > 0 and now >= self._due_at
        by_steps = 0 < settings.every_steps <= watermark.number - self._known.last_number and now >= self._due_at
        if self._asked or by_time or by_steps:
            self._begin(watermark, settings, now)

    def _begin(self, version: Version, settings: DurableSettings, now: float) -> None:
        job = self._job
        self._attempts += 1
        self._asked, self._due_at = False, now + settings.every_s
        # No two attempts have the same name, under whichever coordinator: what is complete is never written again.
        name = f"step-{version.number:09d}-{settings.job}-g{job.generation}-{job.term}.{self._attempts}"
        self._write = Write(name, version, now, set(job.seats))
        job.out.emit("checkpoint_begun", step=version.number, name=name)
        job.send_seats(WriteCheckpoint(generation=job.generation, name=name, version=version))

    # --- how far ------------------------------------------------------------------------------------------------------

    def on_part(self, node: str, part: CheckpointPart, now: float) -> None:
        write = self._write
        if write is None or write.name != part.name or node not in write.pending:
            return
        if part.failure:
            self._fail(write, f"node {node}: {part.failure}", now)
            return
        write.pending.discard(node)
        write.copies |= {copy.seal.rank: copy for copy in part.copies}
        if not write.pending:
            self._finish(write, now)

    def _finish(self, write: Write, now: float) -> None:
        ranks = range(self._job.layout.world_size)
        if any(rank not in write.copies or write.copies[rank].seal.version != write.version for rank in ranks):
            self._fail(write, "some rank's part is missing", now)
            return
        write.finisher = next((seat for seat in self._job.seats if seat in self._job.members), None)
        if write.finisher is None:
            self._fail(write, "no node is left to complete it", now)
            return
        copies = tuple(write.copies[rank] for rank in ranks)
        order = FinishCheckpoint(name=write.name, number=write.version.number, copies=copies)
        self._job.out.send(write.finisher, order)

    def on_done(self, node: str, done: CheckpointDone, now: float) -> None:
        write = self._write
        if write is None or write.name != done.name or node != write.finisher:
            return
        if done.failure:
            self._fail(write, f"node {node}: {done.failure}", now)
            return
        self._write = None
        self._is_awaited = self._asked  # whoever asked meanwhile wants a newer one
        copies = tuple(write.copies[rank] for rank in range(self._job.layout.world_size))
        self._known.on_written(Checkpoint(name=write.name, number=write.version.number, copies=copies))
        self._job.out.emit(
            "checkpoint_written",
            step=write.version.number,
            name=write.name,
            bytes=done.bytes_written,
            seconds=round(now - write.began, 3),
            failures=self._failures,
        )
        self._failures = 0
        self._tell_if_slow(write, now)

    def _tell_if_slow(self, write: Write, now: float) -> None:
        """Once, until a write is quick enough again: no two are written at a time, so the next one comes late."""
        settings = self._settings
        assert settings is not None
        is_slow = bool(settings.every_s) and now - write.began > settings.every_s
        if is_slow and not self._is_slow:
            self._job.out.emit("checkpoint_interval", seconds=round(now - write.began, 1), every_s=settings.every_s)
        self._is_slow = is_slow

    def _check(self, write: Write, settings: DurableSettings, now: float) -> None:
        lost = sorted(write.awaited - self._job.members.keys())
        late = ", ".join(sorted(write.awaited))
        if lost:
            self._fail(write, f"node {', '.join(lost)} was lost", now)
        elif now >= write.began + settings.timeout_s:
            self._fail(write, f"{late} did not write within {settings.timeout_s:g} s", now)
        elif not write.is_late and now >= write.began + settings.timeout_s * LATE_SHARE:
            write.is_late = True
            seconds = round(now - write.began, 1)
            self._job.out.emit(
                "checkpoint_late", step=write.version.number, name=write.name, nodes=late, seconds=seconds
            )

    def _fail(self, write: Write, reason: str, now: float) -> None:
        settings = self._settings
        assert settings is not None
        self._write = None
        self._asked, self._due_at = False, now + min(RETRY_S, settings.every_s or RETRY_S)
        self._failures, self._failure = self._failures + 1, reason
        if self._failures == 1 or self._is_awaited:  # a store that is full says so at each attempt: once is enough
            self._job.out.emit("checkpoint_failed", step=write.version.number, name=write.name, reason=reason)
        self._is_awaited = False
        nodes = [node for node in self._job.seats if node in self._job.members]
        self._job.out.send_each(nodes, AbandonCheckpoint(name=write.name))
