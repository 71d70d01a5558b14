"""SIGSTOP for a while, shorter or longer than detection takes, then SIGCONT: a node that was given up comes back."""

from __future__ import annotations

from deadpool_lab.chaos.faults.fault import Fault, OnNode, OnTrainer, Scene


class StopTrainer(OnTrainer):
    """If it lasts long, the job hangs, and the trainer that does not come to rest is replaced."""

    kind = "stop_trainer"

    def aim(self, scene: Scene) -> bool:
        self.last(scene.timing, scene.timing.hangs_s)
        return super().aim(scene)

    def inject(self, scene: Scene) -> None:
        scene.processes.stop(self.trainer.pid)

    def end(self, scene: Scene) -> None:
        scene.processes.resume(self.trainer.pid)


class StopAgent(OnNode):
    """Stops an agent, whose trainers run on."""

    kind = "stop_agent"

    def aim(self, scene: Scene) -> bool:
        self.last(scene.timing, scene.timing.noticed_s)
        return super().aim(scene)

    def inject(self, scene: Scene) -> None:
        scene.processes.stop(scene.processes.agent(self.target))

    def end(self, scene: Scene) -> None:
        scene.processes.resume(scene.processes.agent(self.target))


class StopNode(OnNode):
    kind = "stop_node"

    def aim(self, scene: Scene) -> bool:
        self.last(scene.timing, scene.timing.noticed_s)
        return super().aim(scene)

    def inject(self, scene: Scene) -> None:
        scene.processes.stop_node(self.target)

    def end(self, scene: Scene) -> None:
        scene.processes.resume_node(self.target)


FAULTS: tuple[type[Fault], ...] = (StopTrainer, StopAgent, StopNode)
