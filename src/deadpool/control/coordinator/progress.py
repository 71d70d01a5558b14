"""What a coordinator tells people while the job runs.

`ProgressReport`: the `progress` event: how far the job is, and what its nodes report of themselves, for whoever
reads the log.

What nodes count since they began is logged as differences, so that a reader may add them up: a node that is lost
takes its counts with it, and a coordinator that takes over does not know what the last one has logged.

`ConsoleLines`: events as sentences on the coordinator's console. The sentences stand in the events' types.

`StorageWatch` tells people, once each, that a disk takes nothing any more and that it takes everything again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from deadpool.events.event import Event
from deadpool.events.log import Trouble
from deadpool.events.types import BY_NAME
from deadpool.protocol.coordinator.core import Coordinator
from deadpool.views.metrics.folds import STEP_BUCKETS_S

BEATS = 10
"""Heartbeats from one such event to the next, in a job that is older than ten minutes: about 5 MB of log per day by
default."""
_FIRST_GAP_S, _GAP_SHARE_OF_AGE = 1.0, 1 / 60
STEP_TIMES_FACT = "step_times"
"""The fact by which the node of rank 0 tells how long steps took."""
_NO_COUNTS = [0] * (len(STEP_BUCKETS_S) + 1)

Facts = Mapping[str, Mapping[str, Any]]


def completed_steps(core: Coordinator) -> int:
    """Returns the steps of the rank that is furthest. Heartbeats tell, and what is committed was completed: after a
    recovery, and after the end of a short job, no heartbeat has told of any step yet, or will."""
    watermark = core.commits.permit.watermark
    told = [step for member in core.members.values() for step in member.steps.values()]
    return max([*told, watermark.number if watermark is not None else 0])


class ProgressReport:
    def __init__(self, *, founds: bool) -> None:
        """`founds`: this process has begun the job, so that nodes have counted nothing before it."""
        self._founds = founds
        self._counted: dict[tuple[str, Any], dict[str, Any]] = {}  # what each agent had counted last time

    def event(self, core: Coordinator, facts: Facts) -> Event:
        watermark, members = core.commits.permit.watermark, core.members.values()
        newest = completed_steps(core)
        sent_bytes, step_counts, step_seconds = self._since_last_time(facts)
        rates = [1e9 * fact["push_gbps"] for fact in facts.values() if fact.get("push_gbps")]
        detail = {
            "phase": core.phase.value,
            "watermark": watermark.number if watermark else None,
            "lag_steps": newest - watermark.number if watermark else None,
            "every": core.commits.timetable.newest.every,
            "overhead": core.overhead.share if core.overhead else None,
            "overhead_error": core.overhead.error if core.overhead else None,
            "nodes": len(core.members),
            "spares": sum(member.is_spare for member in members),
            "quarantined": sum(member.quarantined for member in members),
            "stragglers": len(core.stragglers.known),
            "arena_bytes": sum(fact.get("arena_bytes", 0) for fact in facts.values()),
            "sent_bytes": sent_bytes,
            "transfer_bytes_per_s": sum(rates) / len(rates) if rates else None,
            "slowest_bytes_per_s": min(rates, default=None),
            "step_counts": step_counts,
            "step_seconds": step_seconds,
        }
        return Event(what="progress", step=newest, detail=detail)

    def _since_last_time(self, facts: Facts) -> tuple[int, list[int], float]:
        sent_bytes, counts, seconds = 0, list(_NO_COUNTS), 0.0
        for node, fact in facts.items():
            now = {"bytes": fact.get("bytes_pushed", 0), **_step_times(fact)}
            before = self._counted.get((node, fact.get("pid")), _nothing() if self._founds else now)
            sent_bytes += now["bytes"] - before["bytes"]
            counts = [so_far + new - old for so_far, new, old in zip(counts, now["n"], before["n"], strict=True)]
            seconds += now["seconds"] - before["seconds"]
            self._counted[node, fact.get("pid")] = now
        return sent_bytes, counts, round(seconds, 6)


def _step_times(fact: Mapping[str, Any]) -> dict[str, object]:
    """What does not look as it should counts as nothing: a node's figures must not end a coordinator."""
    told = fact.get(STEP_TIMES_FACT) or {}
    counts, seconds = told.get("step_counts"), told.get("step_seconds")
    if not isinstance(counts, list | tuple) or len(counts) != len(_NO_COUNTS) or not isinstance(seconds, float):
        return {"n": _NO_COUNTS, "seconds": 0.0}
    return {"n": list(counts), "seconds": seconds}


def _nothing() -> dict[str, object]:
    return {"bytes": 0, "n": _NO_COUNTS, "seconds": 0.0}


def gap_s(age_s: float, longest_s: float) -> float:
    """Returns a gap that grows with the age of the job: a short one is seen closely, and the log of a long one stays
    small.
    """
    return min(longest_s, max(_FIRST_GAP_S, _GAP_SHARE_OF_AGE * age_s))


async def now_and_then(call: Callable[[], None], longest_gap_s: float) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(gap_s(time.monotonic() - began, longest_gap_s))
        call()


class ConsoleLines:
    """The sentences of one job, in which what many ranks report comes once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def line(self, record: dict[str, Any]) -> str | None:
        line, event = console_line(record), BY_NAME.get(record["what"])
        if line is None or event is None or not event.once:
            return line
        if line in self._said:
            return None
        self._said.add(line)
        return line


def console_line(record: dict[str, Any]) -> str | None:
    """None: the record is for the log only. An agent of another version may report events that are not known here."""
    event = BY_NAME.get(record["what"])
    return event.sentence(record) if event is not None else None


STORAGE_FACT = "storage"
"""The fact by which a node tells what its disk does not take."""
DROPPED_FACT = "storage_dropped"
"""The fact by which it tells what is lost for ever, because it waited for too long."""


class StorageWatch:
    def __init__(
        self,
        what: str,
        trouble: Callable[[], Trouble | None],
        tell: Callable[[Event], None],
        *,
        dropped: Callable[[], int],
        node: str | None = None,
    ) -> None:
        """`what` is written there, `trouble` says why it is not, and `dropped` how many are lost for ever by now."""
        self._what, self._trouble, self._tell, self._node = what, trouble, tell, node
        self._dropped, self._dropped_before = dropped, 0
        self._is_told = False

    def look(self) -> None:
        """Now and then."""
        trouble = self._trouble()
        if trouble is not None and not self._is_told:
            self._is_told = True
            detail = {"what_waits": self._what, "reason": trouble.reason, "waiting": trouble.waiting}
            self._tell(Event(what="storage_failed", node=self._node, detail=detail))
        elif trouble is None and self._is_told:
            self._is_told = False
            dropped = self._dropped()
            back = {"what_waits": self._what, "dropped": dropped - self._dropped_before}
            self._dropped_before = dropped
            self._tell(Event(what="storage_back", node=self._node, detail=back))

    def facts(self) -> dict[str, object] | None:
        """Describes what waits for the disk, for `deadpool status`. None means that nothing waits."""
        trouble = self._trouble()
        return None if trouble is None else {"what_waits": self._what, "node": self._node, **trouble._asdict()}

    def losses(self) -> dict[str, object] | None:
        """For `deadpool status`, as long as the process lives; None: nothing was dropped."""
        dropped = self._dropped()
        return {"what": self._what, "node": self._node, "dropped": dropped} if dropped else None
