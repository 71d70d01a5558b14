"""Nodes that are cut off from others for a while: packets are dropped silently."""

from __future__ import annotations

from abc import abstractmethod

from deadpool_lab.chaos.faults.fault import Fault, FaultContext, OnNode
from deadpool_lab.chaos.surroundings.disk import Disk
from deadpool_lab.chaos.surroundings.network import HUB, Network, Way


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


FAULTS: tuple[type[Fault], ...] = (CutOff, CutSending, CutHearing, CutFromPeer, CutFromCoordinator, CutCoordinator)
