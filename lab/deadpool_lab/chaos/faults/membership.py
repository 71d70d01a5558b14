"""Nodes that join, and nodes that are drained."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from deadpool_lab.chaos.faults.fault import Fault, FaultContext, OnNode
from deadpool_lab.chaos.surroundings.disk import Disk
from deadpool_lab.chaos.surroundings.network import Network

_DRAIN = "deadpool.cli.act.drain"


class JoinFault(Fault):
    """One more spare joins."""

    kind = "join"
    ends_with = "joined"

    def aim(self, context: FaultContext) -> bool:
        self.target = "a new node"
        return len(context.processes.alive()) <= context.processes.size

    def inject(self, context: FaultContext) -> None:
        self.target = context.processes.add()

    def is_over(self, context: FaultContext) -> bool:
        """True also if another fault has killed it meanwhile."""
        return self.target in context.view.members or not context.processes.is_alive(self.target)


class DrainFault(OnNode):
    """`deadpool node drain`: it hands over its ranks at the end of a step, and leaves."""

    kind = "drain"
    asking: subprocess.Popen[bytes]

    @classmethod
    def is_possible(cls, network: Network, disk: Disk) -> bool:
        return importlib.util.find_spec(_DRAIN) is not None

    def aim(self, context: FaultContext) -> bool:
        return bool(context.view.spares) and super().aim(context)

    def inject(self, context: FaultContext) -> None:
        program = [sys.executable, "-m", "deadpool.cli.main"]
        command = [*program, "node", "drain", str(context.run_dir.path), "--node", self.target]
        output = context.terminal.descriptor if context.terminal is not None else subprocess.DEVNULL
        self.asking = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def is_over(self, context: FaultContext) -> bool:
        """Tells whether the node has left, or the drain was refused because of another fault."""
        return bool(self.asking.poll()) or self.target not in context.view.seats


FAULTS: tuple[type[Fault], ...] = (JoinFault, DrainFault)
