"""Logs how far the job is, now and then, so that its log alone tells how fast it trained.

The gaps grow with the age of the job: a log of a month has no more of these lines than an operator can use.
"""

from __future__ import annotations

from typing import Any

from deadpool.events import Event
from deadpool.protocol.coordinator.core import Coordinator

_FIRST_GAP_S, _LAST_GAP_S = 1.0, 30.0
_SHARE_OF_AGE = 1 / 60


class ProgressLog:
    def __init__(self) -> None:
        self._began: float | None = None
        self._last = 0.0
        self._last_step = -1

    def is_due(self, now: float) -> bool:
        """Asked with each report of a node, so that it takes no timer of its own."""
        if self._began is None:
            self._began = now
        gap_s = min(_LAST_GAP_S, max(_FIRST_GAP_S, _SHARE_OF_AGE * (now - self._began)))
        if now - self._last < gap_s:
            return False
        self._last = now
        return True

    def event(self, core: Coordinator, facts: dict[str, dict[str, Any]]) -> Event | None:
        """None: no step was completed since the last one."""
        step = max((step for member in core.members.values() for step in member.steps.values()), default=0)
        if step == self._last_step:
            return None
        self._last_step = step
        watermark, measured = core.commits.permit.watermark, core.overhead
        detail = {
            "watermark": watermark.number if watermark else None,
            "spares": sum(member.is_spare for member in core.members.values()),
            "overhead": measured.share if measured else None,
            "overhead_error": measured.error if measured else None,
            "bytes_pushed": sum(each.get("bytes_pushed", 0) for each in facts.values()),
            "arena_bytes": sum(each.get("arena_bytes", 0) for each in facts.values()),
        }
        return Event(what="progress", step=step, detail=detail)
