"""Faults of processes: kills, stops, lost coordinators.

SIGKILL, and a script that raises.

`StopTrainer`, `StopAgent` and `StopNode`: SIGSTOP for a while, shorter or longer than detection takes, then SIGCONT:
a node that was given up comes back.

`KillCoordinator` and `StopCoordinator`: the coordinator is killed, or stopped for a while. Training goes on without
it.
"""

from __future__ import annotations

import signal

from deadpool_lab.chaos.faults.fault import Fault, FaultContext, OnNode, OnTrainer
from deadpool_lab.chaos.plan import CRASH_SIGNAL


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


FAULTS: tuple[type[Fault], ...] = (
    KillTrainerFault,
    CrashTrainer,
    KillNode,
    KillAgent,
    KillSpare,
    StopTrainer,
    StopAgent,
    StopNode,
    KillCoordinator,
    StopCoordinator,
)
