"""SIGKILL, and a script that raises."""

from __future__ import annotations

import signal

from deadpool.chaos.faults.fault import Fault, OnNode, OnTrainer, Scene
from deadpool.chaos.jobs import CRASH_SIGNAL


class KillTrainer(OnTrainer):
    kind = "kill_trainer"
    weight = 2

    def injection(self, scene: Scene) -> None:
        scene.fleet.signal(self.trainer.pid, signal.SIGKILL)


class CrashTrainer(OnTrainer):
    """The script raises in its next step."""

    kind = "crash_trainer"

    def injection(self, scene: Scene) -> None:
        scene.fleet.signal(self.trainer.pid, CRASH_SIGNAL)


class KillNode(OnNode):
    """The agent and all its trainers at once."""

    kind = "kill_node"
    weight = 3

    def injection(self, scene: Scene) -> None:
        scene.fleet.kill_node(self.target)

    def is_over(self, scene: Scene) -> bool:
        return self.target not in scene.sight.members


class KillAgent(OnNode):
    """The agent alone: what it started goes with it."""

    kind = "kill_agent"

    def injection(self, scene: Scene) -> None:
        scene.fleet.signal(scene.fleet.agent(self.target), signal.SIGKILL)

    def is_over(self, scene: Scene) -> bool:
        return self.target not in scene.sight.members


class KillSpare(Fault):
    """It may be the one that is just taking a lost node's place."""

    kind = "kill_spare"
    ends_with = "spare_lost"

    def aim(self, scene: Scene) -> bool:
        spares = [node for node in scene.sight.spares if scene.fleet.is_alive(node)]
        if not spares:
            return False
        self.target = self.pick(spares)
        self.endangered = frozenset([self.target])
        return True

    def injection(self, scene: Scene) -> None:
        scene.fleet.kill_node(self.target)

    def is_over(self, scene: Scene) -> bool:
        return self.target not in scene.sight.members


FAULTS: tuple[type[Fault], ...] = (KillTrainer, CrashTrainer, KillNode, KillAgent, KillSpare)
