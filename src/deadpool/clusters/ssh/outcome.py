"""When a job on hosts is over, and with which exit code, from what is known of its coordinators and agents."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

DESERTED_S = 10.0
"""The time without any agent after which the job is over: of several coordinators none can know it."""


@dataclass(slots=True)
class Outcome:
    """`coordinators` and `agents` are names of nodes. A host that is gone has neither."""

    coordinators: set[str]
    agents: set[str]
    code: int | None = None
    reason: str = ""
    _last_code: int = 1
    _deserted_at: float | None = field(default=None)

    @classmethod
    def of(cls, coordinators: Sequence[str], agents: Sequence[str]) -> Outcome:
        return cls(coordinators=set(coordinators), agents=set(agents))

    def on_coordinator_ended(self, node: str, code: int, *, leading: bool) -> None:
        """The word of the one that leads counts. One that failed may have been deposed: the others are asked, too."""
        self.coordinators.discard(node)
        if leading and code == 0:
            self._settle(0, "")
        elif leading:
            self._last_code = code if code > 0 else 1
        self._check("the job failed" if leading else "no coordinator is left")

    def on_coordinator_started(self, node: str) -> None:
        self.coordinators.add(node)

    def on_agent_ended(self, node: str) -> None:
        self.agents.discard(node)

    def on_agent_started(self, node: str) -> None:
        self.agents.add(node)

    def on_host_gone(self, node: str) -> None:
        self.agents.discard(node)
        if node in self.coordinators:
            self.coordinators.discard(node)
            self._check("no machine with a coordinator is left")

    def tick(self) -> None:
        if self.agents or self.code is not None:
            self._deserted_at = None
        elif self._deserted_at is None:
            self._deserted_at = time.monotonic()
        elif time.monotonic() > self._deserted_at + DESERTED_S:
            self._settle(self._last_code, "no agent is left")

    def _check(self, reason: str) -> None:
        if not self.coordinators:
            self._settle(self._last_code, reason)

    def _settle(self, code: int, reason: str) -> None:
        if self.code is None:
            self.code, self.reason = code, reason
