"""SIGSTOP for a while, shorter or longer than detection takes, then SIGCONT: a node that was given up comes back."""

from __future__ import annotations

from deadpool_lab.chaos.faults.fault import Fault, FaultContext, OnNode, OnTrainer


class StopTrainer(OnTrainer):
    """If it lasts long, the job hangs, and the trainer that does not come to rest is replaced."""

    kind = "stop_trainer"

    def aim(self, context: FaultContext) -> bool:
        self.last(context.timing, context.timing.hangs_s)
        return super().aim(context)

    def inject(self, context: FaultContext) -> None:
        context.processes.stop(self.trainer.pid)

    def end(self, context: FaultContext) -> None:
        context.processes.resume(self.trainer.pid)


class StopAgent(OnNode):
    """Stops an agent, whose trainers run on."""

    kind = "stop_agent"

    def aim(self, context: FaultContext) -> bool:
        self.last(context.timing, context.timing.noticed_s)
        return super().aim(context)

    def inject(self, context: FaultContext) -> None:
        context.processes.stop(context.processes.agent(self.target))

    def end(self, context: FaultContext) -> None:
        context.processes.resume(context.processes.agent(self.target))


class StopNode(OnNode):
    kind = "stop_node"

    def aim(self, context: FaultContext) -> bool:
        self.last(context.timing, context.timing.noticed_s)
        return super().aim(context)

    def inject(self, context: FaultContext) -> None:
        context.processes.stop_node(self.target)

    def end(self, context: FaultContext) -> None:
        context.processes.resume_node(self.target)


FAULTS: tuple[type[Fault], ...] = (StopTrainer, StopAgent, StopNode)
