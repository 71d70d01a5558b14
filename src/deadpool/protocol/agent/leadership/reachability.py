"""Which other nodes this one reaches, when the coordinator asks."""

from __future__ import annotations

from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.effects import ProbePeers
from deadpool.protocol.inputs import PeersProbed
from deadpool.protocol.messages import Probe, Probed
from deadpool.protocol.topology import Address


class Reachability:
    def __init__(self, state: AgentState) -> None:
        self._state = state
        self._asked: Probe | None = None
        self._reached: set[Address] = set()  # at least once

    def probe(self, order: Probe) -> None:
        self._asked = order
        self._state.effects.append(ProbePeers(number=order.number, peers=order.peers))

    def on_probed(self, result: PeersProbed) -> None:
        """A node that was never reached is not reported: there may be no way to it, and no need for one."""
        asked = self._asked
        if asked is None or asked.number != result.number:
            return
        self._reached.update(peer.address for peer in asked.peers if peer.node not in result.unreachable)
        lost = [peer.node for peer in asked.peers if peer.node in result.unreachable and peer.address in self._reached]
        self._state.tell_coordinator(Probed(generation=asked.generation, number=asked.number, unreachable=tuple(lost)))
