"""The coordinator is killed, or stopped for a while. Training goes on without it."""

from __future__ import annotations

import signal

from deadpool_lab.chaos.faults.fault import Fault, FaultContext


class _OnCoordinator(Fault):
    pid: int
    term: int

    def aim(self, context: FaultContext) -> bool:
        self.pid, self.term = context.processes.coordinator, context.view.term
        self.target = f"coordinator of term {self.term}"
        return True


class KillCoordinator(_OnCoordinator):
    kind = "kill_coordinator"
    ends_with = "took_over"
    weight = 2

    def inject(self, context: FaultContext) -> None:
        context.processes.signal(self.pid, signal.SIGKILL)

    def is_over(self, context: FaultContext) -> bool:
        return context.view.term > self.term


class StopCoordinator(_OnCoordinator):
    """If it lasts long, a standby takes over, and no node may obey the old coordinator when it goes on."""

    kind = "stop_coordinator"

    def aim(self, context: FaultContext) -> bool:
        timing = context.timing
        self.lasts_s = timing.noticed_s if self.intent.long or timing.one_by_one else timing.unnoticed_s
        return super().aim(context)

    def inject(self, context: FaultContext) -> None:
        context.processes.stop(self.pid)

    def end(self, context: FaultContext) -> None:
        context.processes.resume(self.pid)


FAULTS: tuple[type[Fault], ...] = (KillCoordinator, StopCoordinator)
