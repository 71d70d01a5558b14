"""Losses in a job of so many nodes: start, some steps, heartbeats; then nodes die, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deadpool.protocol.coordinator.config import CoordinatorConfig, Deadlines
from deadpool.protocol.coordinator.job import Phase
from deadpool.protocol.coordinator.leadership.leadership import Leadership
from deadpool.protocol.inputs import LinkLost
from deadpool.protocol.messages import Settings
from deadpool.protocol.topology import Layout, Schedule
from deadpool_lab.sim.scale.metered_coordinator import Decode, Encode, MeteredCoordinator, Usage
from deadpool_lab.sim.scale.scripted_agent import ScriptedNode

HEARTBEAT_S = 1.0
STEP_S = 5.0
STEPS = 3
ROUNDS = 5
LOSSES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    nodes: int
    per_node: int
    start: Usage
    version: Usage  # one committed version
    heartbeats: Usage  # of ROUNDS rounds
    recoveries: tuple[Usage, ...]

    def report(self) -> dict[str, Any]:
        recovery = max(self.recoveries, key=lambda usage: usage.gos_done_s)  # the worst
        beats = self.heartbeats.messages["Heartbeat"]
        return {
            "nodes": self.nodes,
            "nproc_per_node": self.per_node,
            "heartbeat_share_of_a_core": round(self.heartbeats.cpu_s / (ROUNDS * HEARTBEAT_S), 4),
            "cpu_us_per_heartbeat": round(1e6 * self.heartbeats.cpu_s / max(1, beats), 1),
            "fault_to_last_plan_s": round(recovery.plans_done_s, 4),
            "fault_to_last_go_s": round(recovery.gos_done_s, 4),
            "each_fault_to_last_go_s": [round(each.gos_done_s, 4) for each in self.recoveries],
            "recovery": recovery.report(),
            "committed_version": self.version.report(),
            "start": self.start.report(),
        }


class ScriptedJob:
    def __init__(self, nodes: int, per_node: int, *, encode: Encode, decode: Decode) -> None:
        layout = Layout(positions=nodes, per_node=per_node, holders=1)
        settings = Settings(layout=layout, slots=2, heartbeat_s=HEARTBEAT_S, unwind_s=30.0, overhead_budget=0.01)
        deadlines = Deadlines(node_s=5.0, fence_s=60.0, prepare_s=300.0, connect_s=60.0, spare_wait_s=600.0, hang_s=0.0)
        config = CoordinatorConfig(settings=settings, deadlines=deadlines, schedule=Schedule())
        leadership = Leadership(config, name="c0", founds=True)
        self.layout = layout
        self.nodes: dict[str, ScriptedNode] = {}
        self.coordinator = MeteredCoordinator(leadership, encode=encode, decode=decode, deliver=self._deliver)
        for index in range(nodes + LOSSES):
            spare = index >= nodes
            name = f"s{index}" if spare else f"n{index}"
            self.nodes[name] = ScriptedNode(name, spare=spare, peers=self.nodes, send=self.coordinator.send)

    def _deliver(self, node: str, term: int, message: Any) -> None:
        if node in self.nodes:
            self.nodes[node].on_message(term, message)

    def start(self) -> Usage:
        usage = self.coordinator.start_stretch()
        for node in self.nodes.values():
            self.coordinator.send(node.name, node.join())
        self.coordinator.run_until_idle()
        for node in self.nodes.values():
            for trainer in node.seated():
                trainer.begin()
        self.coordinator.run_until_idle()
        assert self.coordinator.leadership.coordinator.phase is Phase.RUNNING, (
            self.coordinator.leadership.coordinator.phase
        )
        return usage

    def step(self, number: int) -> Usage:
        usage = self.coordinator.start_stretch()
        for node in self.nodes.values():
            for trainer in node.seated():
                trainer.step(number, STEP_S)
                trainer.capture()
        self.coordinator.run_until_idle()
        watermark = self.coordinator.leadership.coordinator.commits.permit.watermark
        assert watermark is not None and watermark.number == number, f"version {number} is not complete: {watermark}"
        return usage

    def heartbeat(self, rounds: int) -> Usage:
        usage = self.coordinator.start_stretch()
        for _ in range(rounds):
            self.coordinator.now += HEARTBEAT_S
            for node in self.nodes.values():
                node.tick(self.coordinator.now)
            self.coordinator.run_until_idle()
        return usage

    def lose_node(self, name: str) -> Usage:
        usage = self.coordinator.start_stretch()
        del self.nodes[name]
        self.coordinator.feed(LinkLost(node=name, reason="connection reset"))
        self.coordinator.run_until_idle()
        assert self.coordinator.leadership.coordinator.phase is Phase.RUNNING, name
        return usage


def measure(nodes: int, per_node: int, *, encode: Encode, decode: Decode) -> Measured:
    job = ScriptedJob(nodes, per_node, encode=encode, decode=decode)
    start = job.start()
    for number in range(1, STEPS + 1):
        version = job.step(number)
        job.heartbeat(1)
    heartbeats = job.heartbeat(ROUNDS)
    recoveries = []
    for loss in range(LOSSES):
        recoveries.append(job.lose_node(f"n{nodes // 3 + 2 * loss}"))
        job.step(STEPS + 1 + loss)  # so that the next loss finds every copy in its place
    return Measured(
        nodes=nodes,
        per_node=per_node,
        start=start,
        version=version,
        heartbeats=heartbeats,
        recoveries=tuple(recoveries),
    )
