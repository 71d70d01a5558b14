"""Nodes that look ill, by the files that their agents read: some die of it, others are sound after all."""

from __future__ import annotations

from deadpool_lab.chaos.faults.fault import Fault, FaultContext, OnNode
from deadpool_lab.chaos.surroundings.health_files import CORRECTABLE_ERRORS, LINK_FAILURES, UNCORRECTABLE_ERRORS, XID

_DIES_AFTER_S = 20.0
_STORM = 50
_PRESSURE_S = 10.0


class DyingNode(OnNode):
    """A node whose hardware fails, and that dies of it a little later for good, unless it has left the job by then."""

    kind = "dying_node"
    weight = 2

    def aim(self, context: FaultContext) -> bool:
        self.lasts_s = _DIES_AFTER_S
        return super().aim(context)

    def inject(self, context: FaultContext) -> None:
        assert context.health is not None
        if self.intent.again < 0.5:
            context.health.count(self.target, UNCORRECTABLE_ERRORS, 1)
        else:
            context.health.log(self.target, XID)

    def end(self, context: FaultContext) -> None:
        if context.processes.is_alive(self.target):
            context.processes.kill_node(self.target)

    def is_over(self, context: FaultContext) -> bool:
        return self.target not in context.view.members


class ErrorStorm(OnNode):
    """Errors that were corrected, or a link that was down for a moment. Three of them within a dwell time look ill."""

    kind = "error_storm"
    weight = 4

    def aim(self, context: FaultContext) -> bool:
        found = super().aim(context)
        self.endangered = frozenset()
        return found

    def inject(self, context: FaultContext) -> None:
        assert context.health is not None
        if self.intent.again < 0.5:
            context.health.count(self.target, CORRECTABLE_ERRORS, _STORM)
        else:
            context.health.count(self.target, LINK_FAILURES, 1)


class MemoryPressure(OnNode):
    """For a while, and then it is over: health that flaps."""

    kind = "memory_pressure"
    weight = 2

    def aim(self, context: FaultContext) -> bool:
        found = super().aim(context)
        self.endangered, self.lasts_s = frozenset(), _PRESSURE_S
        return found

    def inject(self, context: FaultContext) -> None:
        assert context.health is not None
        context.health.set_pressure(self.target, 50.0)

    def end(self, context: FaultContext) -> None:
        assert context.health is not None
        context.health.set_pressure(self.target, 0.0)


FAULTS: tuple[type[Fault], ...] = (DyingNode, ErrorStorm, MemoryPressure)
