"""Faults of membership: nodes that join and leave, terminals that close.

`JoinFault` and `DrainFault`: Nodes that join, and nodes that are drained.

`TerminalClosed` and `SecondLauncher`: what people do around a job that runs: they close its terminal, and start it a
second time.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from deadpool_lab.chaos.faults.fault import Fault, FaultContext, OnNode
from deadpool_lab.chaos.jobs import SCRIPT
from deadpool_lab.chaos.surroundings.disk import Disk
from deadpool_lab.chaos.surroundings.network import Network

_DRAIN = "deadpool.cli.job"


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


_REFUSED = 2


class TerminalClosed(Fault):
    """Closes the terminal of all processes of the job that have not lost theirs before. Under `setsid` and `nohup` no
    SIGHUP comes with it; each line that is printed fails from then on."""

    kind = "terminal_closed"

    def aim(self, context: FaultContext) -> bool:
        if context.terminal is None:
            return False
        self.target = f"terminal {context.terminal.number}"
        return True

    def inject(self, context: FaultContext) -> None:
        assert context.terminal is not None
        context.terminal.replace()
        context.processes.print_to(context.terminal.descriptor)


class SecondLauncher(Fault):
    """`deadpool run` with the run folder of this job: it has to be refused, and to change nothing."""

    kind = "second_launcher"
    launcher: subprocess.Popen[str]
    secret: bytes
    harms_before: int | None  # to the disk; None: it takes nothing, so that the launcher may be refused because of that

    def aim(self, context: FaultContext) -> bool:
        self.target = "the run folder"
        return context.disk is not None

    def inject(self, context: FaultContext) -> None:
        assert context.disk is not None
        self.harms_before = context.disk.harms if context.disk.is_sound else None
        self.secret = context.run_dir.secret_file.read_bytes()
        command = [sys.executable, "-m", "deadpool.cli.main", "run", f"--run-dir={context.run_dir.path}", str(SCRIPT)]
        self.launcher = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def is_over(self, context: FaultContext) -> bool:
        """Where the disk holds everything up, it waits too."""
        if self.launcher.poll() is None:
            return False
        self._judge(context)
        return True

    def _judge(self, context: FaultContext) -> None:
        said = " ".join(self.launcher.communicate()[0].split())
        assert context.disk is not None
        reason = "uses it" if context.disk.harms == self.harms_before else "cannot be used"
        if self.launcher.returncode != _REFUSED or reason not in said:
            self.problem = f"a second launcher ended with code {self.launcher.returncode}: {said[-500:]}"
        elif context.run_dir.secret_file.read_bytes() != self.secret:
            self.problem = "a second launcher that was refused has changed the secret of the job"


FAULTS: tuple[type[Fault], ...] = (
    JoinFault,
    DrainFault,
    TerminalClosed,
    SecondLauncher,
)
