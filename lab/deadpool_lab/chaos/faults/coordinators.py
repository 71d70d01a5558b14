"""The coordinator is killed, or stopped for a while. Training goes on without it."""

from __future__ import annotations

import signal

from deadpool_lab.chaos.faults.fault import Fault, Scene


class _OnCoordinator(Fault):
    pid: int
    term: int

    def aim(self, scene: Scene) -> bool:
        self.pid, self.term = scene.processes.coordinator, scene.view.term
        self.target = f"coordinator of term {self.term}"
        return True


class KillCoordinator(_OnCoordinator):
    kind = "kill_coordinator"
    ends_with = "took_over"
    weight = 2

    def inject(self, scene: Scene) -> None:
        scene.processes.signal(self.pid, signal.SIGKILL)

    def is_over(self, scene: Scene) -> bool:
        return scene.view.term > self.term


class StopCoordinator(_OnCoordinator):
    """If it lasts long, a standby takes over, and no node may obey the old coordinator when it goes on."""

    kind = "stop_coordinator"

    def aim(self, scene: Scene) -> bool:
        timing = scene.timing
        self.lasts_s = timing.noticed_s if self.intent.long or timing.one_by_one else timing.unnoticed_s
        return super().aim(scene)

    def inject(self, scene: Scene) -> None:
        scene.processes.stop(self.pid)

    def end(self, scene: Scene) -> None:
        scene.processes.resume(self.pid)


FAULTS: tuple[type[Fault], ...] = (KillCoordinator, StopCoordinator)
