"""One loss in a job of so many nodes: start, some steps, heartbeats, a node that dies, the recovery, and on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deadpool.protocol.coordinator.config import CoordinatorConfig, Deadlines
from deadpool.protocol.coordinator.job import Phase
from deadpool.protocol.coordinator.leadership import Leadership
from deadpool.protocol.effects import LinkLost
from deadpool.protocol.messages import Settings
from deadpool.protocol.topology import Layout, Schedule
from deadpool.sim.scale.metered_coordinator import Decode, Desk, Encode, Tally
from deadpool.sim.scale.scripted_agent import Node

HEARTBEAT_S = 1.0
STEP_S = 5.0
STEPS = 3
ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    nodes: int
    per_node: int
    start: Tally
    version: Tally  # one committed version
    heartbeats: Tally  # of ROUNDS rounds
    recovery: Tally

    def report(self) -> dict[str, Any]:
        beats = self.heartbeats.messages["Heartbeat"]
        return {
            "nodes": self.nodes,
            "nproc_per_node": self.per_node,
            "heartbeat_share_of_a_core": round(self.heartbeats.cpu_s / (ROUNDS * HEARTBEAT_S), 4),
            "cpu_us_per_heartbeat": round(1e6 * self.heartbeats.cpu_s / max(1, beats), 1),
            "fault_to_last_plan_s": round(self.recovery.plans_done_s, 4),
            "recovery": self.recovery.report(),
            "committed_version": self.version.report(),
            "start": self.start.report(),
        }


class Fleet:
    def __init__(self, nodes: int, per_node: int, *, encode: Encode, decode: Decode) -> None:
        layout = Layout(positions=nodes, per_node=per_node, holders=1)
        settings = Settings(layout=layout, slots=2, heartbeat_s=HEARTBEAT_S, unwind_s=30.0, overhead_budget=0.01)
        deadlines = Deadlines(node_s=5.0, fence_s=60.0, prepare_s=300.0, connect_s=60.0, spare_wait_s=600.0, hang_s=0.0)
        config = CoordinatorConfig(settings=settings, deadlines=deadlines, schedule=Schedule())
        office = Leadership(config, name="c0", founds=True)
        self.layout = layout
        self.nodes: dict[str, Node] = {}
        self.desk = Desk(office, encode=encode, decode=decode, deliver=self._deliver)
        for index in range(nodes + 1):
            spare = index == nodes
            name = f"s{index}" if spare else f"n{index}"
            self.nodes[name] = Node(name, spare=spare, peers=self.nodes, send=self.desk.send)

    def _deliver(self, node: str, term: int, message: Any) -> None:
        if node in self.nodes:
            self.nodes[node].hear(term, message)

    def start(self) -> Tally:
        tally = self.desk.begin()
        for node in self.nodes.values():
            self.desk.send(node.name, node.join())
        self.desk.work()
        for node in self.nodes.values():
            for puppet in node.seated():
                puppet.begin()
        self.desk.work()
        assert self.desk.office.coordinator.phase is Phase.RUNNING, self.desk.office.coordinator.phase
        return tally

    def step(self, number: int) -> Tally:
        tally = self.desk.begin()
        for node in self.nodes.values():
            for puppet in node.seated():
                puppet.step(number, STEP_S)
                puppet.capture()
        self.desk.work()
        watermark = self.desk.office.coordinator.commits.permit.watermark
        assert watermark is not None and watermark.number == number, f"version {number} is not complete: {watermark}"
        return tally

    def beat(self, rounds: int) -> Tally:
        tally = self.desk.begin()
        for _ in range(rounds):
            self.desk.now += HEARTBEAT_S
            for node in self.nodes.values():
                node.tick(self.desk.now)
            self.desk.work()
        return tally

    def lose(self, name: str) -> Tally:
        tally = self.desk.begin()
        del self.nodes[name]
        self.desk.feed(LinkLost(node=name, reason="connection reset"))
        self.desk.work()
        coordinator = self.desk.office.coordinator
        assert coordinator.phase is Phase.RUNNING and coordinator.generation.n == 2, coordinator.phase
        return tally


def measure(nodes: int, per_node: int, *, encode: Encode, decode: Decode) -> Measured:
    fleet = Fleet(nodes, per_node, encode=encode, decode=decode)
    start = fleet.start()
    for number in range(1, STEPS + 1):
        version = fleet.step(number)
        fleet.beat(1)
    heartbeats = fleet.beat(ROUNDS)
    recovery = fleet.lose(f"n{nodes // 3}")
    return Measured(
        nodes=nodes, per_node=per_node, start=start, version=version, heartbeats=heartbeats, recovery=recovery
    )
