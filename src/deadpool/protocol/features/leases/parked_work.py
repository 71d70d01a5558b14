"""A command that runs while a machine has nothing else to do: when it is started, stopped, and started again.

It is started once the machine is parked, and stopped when the machine is needed: SIGTERM, then SIGKILL. Nothing waits
for its end. A command that ends by itself with 0 has done its work and is not started again; one that fails is, after
a pause that doubles.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from deadpool.protocol.effects import StartParkedWork, StopParkedWork
from deadpool.protocol.inputs import ParkedWorkEnded

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
RAN_WELL_S = 60.0
"""A command that ran for so long before it failed is started again after the shortest pause."""


class WorkState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"


class _Emit(Protocol):
    def __call__(self, what: str, *, rank: int | None = None, step: int | None = None, **detail: object) -> None: ...


class ParkedWork:
    def __init__(
        self, perform: Callable[[StartParkedWork | StopParkedWork], None], emit: _Emit, *, enabled: bool
    ) -> None:
        self._perform, self._emit = perform, emit
        self.state = WorkState.WAITING if enabled else WorkState.DONE
        self.starts = self.preemptions = 0
        self._started_at = 0.0
        self._not_before: float | None = None  # a command that failed is not started again before
        self._pause_s = FIRST_PAUSE_S
        self._reason = ""  # why it is being stopped

    @property
    def is_enabled(self) -> bool:
        return self.state is not WorkState.DONE

    def start_if_due(self, now: float) -> None:
        """The machine is parked."""
        if self.state is not WorkState.WAITING or (self._not_before is not None and now < self._not_before):
            return
        self.state, self._not_before, self._started_at = WorkState.RUNNING, None, now
        self.starts += 1
        self._perform(StartParkedWork(start=self.starts))
        self._emit("parked_work_started", start=self.starts)

    def stop(self, reason: str) -> None:
        """The machine is needed. A command that waits for its next start simply waits on."""
        if self.state is WorkState.RUNNING:
            self.state, self._reason = WorkState.STOPPING, reason
            self.preemptions += 1
            self._perform(StopParkedWork())

    def on_ended(self, ended: ParkedWorkEnded, now: float) -> None:
        if self.state is WorkState.STOPPING:
            self._pause_s = FIRST_PAUSE_S
            self.state = WorkState.WAITING
            self._emit("parked_work_stopped", reason=self._reason, took_s=ended.took_s, killed=ended.killed)
            return
        pause_s = self._next_pause(ended, now)
        self.state = WorkState.DONE if pause_s is None else WorkState.WAITING
        self._not_before = None if pause_s is None else now + pause_s
        self._emit("parked_work_ended", code=ended.code, again_in_s=pause_s)

    def _next_pause(self, ended: ParkedWorkEnded, now: float) -> float | None:
        """None: it has done its work."""
        if ended.code == 0:
            return None
        pause_s = FIRST_PAUSE_S if now - self._started_at >= RAN_WELL_S else self._pause_s
        self._pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return pause_s

    def deadline(self) -> float | None:
        return self._not_before

    def facts(self) -> dict[str, object]:
        return {"state": self.state.value, "starts": self.starts, "preemptions": self.preemptions}
