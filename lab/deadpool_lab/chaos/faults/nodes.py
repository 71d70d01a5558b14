"""Faults of nodes: they join and leave, are cut off from others, or look ill, and people act around their job.

Some nodes join, and some are drained. Nodes that are cut off for a while lose packets silently. Nodes look ill by the
files that their agents read: some die of it, others are sound after all. People close the terminal of a job that runs,
and start it a second time.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from abc import abstractmethod

from deadpool_lab.chaos.faults.fault import Fault, FaultContext, OnNode
from deadpool_lab.chaos.plan import SCRIPT
from deadpool_lab.chaos.surroundings.disk import Disk
from deadpool_lab.chaos.surroundings.health_files import CORRECTABLE_ERRORS, LINK_FAILURES, UNCORRECTABLE_ERRORS, XID
from deadpool_lab.chaos.surroundings.network import HUB, Network, Way

_DRAIN = "deadpool.cli.job"

_DIES_AFTER_S = 20.0
_STORM = 50
_PRESSURE_S = 10.0


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


MEMBERSHIP: tuple[type[Fault], ...] = (
    JoinFault,
    DrainFault,
    TerminalClosed,
    SecondLauncher,
)


class _Cut(OnNode):
    @classmethod
    def is_possible(cls, network: Network, disk: Disk) -> bool:
        return network.can_cut

    def aim(self, context: FaultContext) -> bool:
        self.last(context.timing, context.timing.noticed_s)
        return super().aim(context)


class CutOff(_Cut):
    """Cut off from all others, in both directions."""

    kind = "cut_off"
    weight = 2

    def inject(self, context: FaultContext) -> None:
        context.network.isolate(self.target)

    def end(self, context: FaultContext) -> None:
        context.network.rejoin(self.target)


class _CutWays(_Cut):
    ways: tuple[Way, ...] = ()

    def inject(self, context: FaultContext) -> None:
        self.ways = self.chosen_ways(context)
        context.network.cut(self.ways)

    def end(self, context: FaultContext) -> None:
        context.network.mend(self.ways)

    @abstractmethod
    def chosen_ways(self, context: FaultContext) -> tuple[Way, ...]: ...

    def others(self, context: FaultContext) -> list[str]:
        return [node for node in context.processes.alive() if node != self.target]


class CutSending(_CutWays):
    """No other receives from it; it receives from all."""

    kind = "cut_sending"

    def chosen_ways(self, context: FaultContext) -> tuple[Way, ...]:
        return tuple((self.target, other) for other in (HUB, *self.others(context)))


class CutHearing(_CutWays):
    """All others receive from it; it receives from none."""

    kind = "cut_hearing"

    def chosen_ways(self, context: FaultContext) -> tuple[Way, ...]:
        return tuple((other, self.target) for other in (HUB, *self.others(context)))


class CutFromPeer(_CutWays):
    """Cut off from one other node that holds ranks, in both directions or in one. The coordinator still hears both."""

    kind = "cut_from_peer"
    peer: str

    def aim(self, context: FaultContext) -> bool:
        if not super().aim(context):
            return False
        peers = [node for node in context.view.seats if node != self.target and context.processes.is_alive(node)]
        if not peers:
            return False
        self.peer = self.pick_other(peers)
        self.endangered = frozenset([self.target, self.peer])
        return True

    @property
    def described(self) -> str:
        return f"{self.target} and {self.peer}"

    def chosen_ways(self, context: FaultContext) -> tuple[Way, ...]:
        ways = ((self.target, self.peer), (self.peer, self.target))
        is_one_sided = int(self.intent.pick * 1000) % 2
        return ways[:1] if is_one_sided else ways


class CutFromCoordinator(_CutWays):
    """A node that reaches its peers, and no coordinator."""

    kind = "cut_from_coordinator"

    def chosen_ways(self, context: FaultContext) -> tuple[Way, ...]:
        return ((self.target, HUB), (HUB, self.target))


class CutCoordinator(_CutWays):
    """The coordinators are cut off from every node: all nodes seem lost, and all train on. Only a node that joins
    meanwhile reaches them. If it lasts long, the coordinators have given up waiting for the nodes by then.

    A new term is not certain: nodes that return in time may find the coordinator that they had. It is over when
    versions are committed again, which takes a coordinator that hears the nodes."""

    kind = "cut_coordinator"
    ends_with = "took_over"

    def aim(self, context: FaultContext) -> bool:
        self.lasts_s = context.timing.noticed_s * (2 if self.intent.long else 1)
        self.target = "all nodes"
        return True

    def chosen_ways(self, context: FaultContext) -> tuple[Way, ...]:
        return tuple(way for node in self.others(context) for way in ((HUB, node), (node, HUB)))


CUTS: tuple[type[Fault], ...] = (CutOff, CutSending, CutHearing, CutFromPeer, CutFromCoordinator, CutCoordinator)


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


ILLNESSES: tuple[type[Fault], ...] = (DyingNode, ErrorStorm, MemoryPressure)
