"""SIGKILL, and a script that raises."""

from __future__ import annotations

import signal

from deadpool_lab.chaos.faults.fault import Fault, FaultContext, OnNode, OnTrainer
from deadpool_lab.chaos.jobs import CRASH_SIGNAL


class KillTrainerFault(OnTrainer):
    kind = "kill_trainer"
    weight = 2

    def inject(self, context: FaultContext) -> None:
        context.processes.signal(self.trainer.pid, signal.SIGKILL)


class CrashTrainer(OnTrainer):
    """The script raises in its next step."""

    kind = "crash_trainer"

    def inject(self, context: FaultContext) -> None:
        context.processes.signal(self.trainer.pid, CRASH_SIGNAL)


class KillNode(OnNode):
    """The agent and all its trainers at once."""

    kind = "kill_node"
    weight = 3

    def inject(self, context: FaultContext) -> None:
        context.processes.kill_node(self.target)

    def is_over(self, context: FaultContext) -> bool:
        return self.target not in context.view.members


class KillAgent(OnNode):
    """The agent alone: the processes that it started end with it."""

    kind = "kill_agent"

    def inject(self, context: FaultContext) -> None:
        context.processes.signal(context.processes.agent(self.target), signal.SIGKILL)

    def is_over(self, context: FaultContext) -> bool:
        return self.target not in context.view.members


class KillSpare(Fault):
    """Kills a spare, which may be the one that is just taking a lost node's place."""

    kind = "kill_spare"
    ends_with = "spare_lost"

    def aim(self, context: FaultContext) -> bool:
        spares = [node for node in context.view.spares if context.processes.is_alive(node)]
        if not spares:
            return False
        self.target = self.pick(spares)
        self.endangered = frozenset([self.target])
        return True

    def inject(self, context: FaultContext) -> None:
        context.processes.kill_node(self.target)

    def is_over(self, context: FaultContext) -> bool:
        return self.target not in context.view.members


FAULTS: tuple[type[Fault], ...] = (KillTrainerFault, CrashTrainer, KillNode, KillAgent, KillSpare)
