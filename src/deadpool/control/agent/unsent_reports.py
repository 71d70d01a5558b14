"""What an agent has to report while no coordinator takes it: bounded, and what is dropped is counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from deadpool.events.event import Event
from deadpool.protocol.messages import Report

LIMIT = 1000
"""Events that wait for a coordinator to log them; beyond that the oldest are dropped."""


class UnsentReports:
    def __init__(self, node: str) -> None:
        self._node = node
        self._reports: deque[Report] = deque()
        self._dropped = 0

    def add(self, report: Report) -> None:
        self._reports.append(report)
        if len(self._reports) > LIMIT:
            self._dropped += len(self._reports.popleft().records)

    def send(self, send: Callable[[Report], None], tell: Callable[[Event], None]) -> None:
        """`tell` is given the event that says how many are lost, after those that are not."""
        while self._reports:
            send(self._reports.popleft())
        if self._dropped:
            count, self._dropped = self._dropped, 0
            tell(Event(what="events_dropped", node=self._node, detail={"count": count}))
