"""Losses in a large job, and what they cost its coordinator.

`Usage` and `MeteredCoordinator`: the coordinator of a large job, with the cost of its work: messages, bytes and CPU
seconds.

`Measured` and `ScriptedJob`: Losses in a job of so many nodes: start, some steps, heartbeats; then nodes die, one
after the other.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from deadpool.protocol.coordinator.job import Phase
from deadpool.protocol.coordinator.leadership.leadership import Leadership
from deadpool.protocol.coordinator.outbox import CoordinatorConfig, Deadlines
from deadpool.protocol.effects import ToAgent
from deadpool.protocol.identity import Layout, Schedule
from deadpool.protocol.inputs import FromAgent, LinkLost
from deadpool.protocol.messages import Order, Settings
from deadpool_lab.sim.scale.scripted_agent import ScriptedNode

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]
Deliver = Callable[[str, int, Any], None]


@dataclass(slots=True)
class Usage:
    """The cost of one stretch of the run."""

    messages: Counter[str] = field(default_factory=Counter)  # by type, in both directions
    bytes_in: Counter[str] = field(default_factory=Counter)
    bytes_out: Counter[str] = field(default_factory=Counter)
    handling_s: dict[str, float] = field(
        default_factory=dict
    )  # by type of what came in, with all that followed from it
    cpu_s: float = 0.0
    plans_done_s: float = 0.0  # CPU time when the last plan was out
    gos_done_s: float = 0.0  # the same for the last Go

    def report(self) -> dict[str, Any]:
        return {
            "messages": self.messages.total(),
            "bytes_in": self.bytes_in.total(),
            "bytes_out": self.bytes_out.total(),
            "coordinator_cpu_s": round(self.cpu_s, 4),
            "by_type": {name: self._of_type(name) for name, _ in self.messages.most_common()},
        }

    def _of_type(self, name: str) -> dict[str, float]:
        size = self.bytes_in[name] + self.bytes_out[name]
        return {"messages": self.messages[name], "bytes": size, "cpu_s": round(self.handling_s.get(name, 0.0), 4)}

    def spend(self, seconds: float, on: str) -> None:
        self.cpu_s += seconds
        self.handling_s[on] = self.handling_s.get(on, 0.0) + seconds


class MeteredCoordinator:
    """Each message is decoded, handled and answered in bytes; only that time is measured."""

    def __init__(self, leadership: Leadership, *, encode: Encode, decode: Decode, deliver: Deliver) -> None:
        self.leadership, self._encode, self._decode, self._deliver = leadership, encode, decode, deliver
        self._inbox: deque[tuple[str, Any]] = deque()
        self.usage = Usage()
        self.now = 0.0

    def start_stretch(self) -> Usage:
        """Begins to count anew."""
        self.usage = Usage()
        return self.usage

    def send(self, node: str, message: Any) -> None:
        self._inbox.append((node, message))

    def run_until_idle(self) -> None:
        """Handles messages until none is left."""
        while self._inbox:
            node, message = self._inbox.popleft()
            data = self._encode(message)
            self._count_in(message, data)
            began = time.process_time()
            heard = FromAgent(node=node, message=self._decode(data))
            effects = self.leadership.step(heard, now=self.now)
            self.leadership.deadline()
            self._answer(effects, began, type(message).__name__)

    def feed(self, input: Any) -> None:
        began = time.process_time()
        self._answer(self.leadership.step(input, now=self.now), began, type(input).__name__)

    def _answer(self, effects: list[Any], began: float, to: str) -> None:
        orders = [effect for effect in effects if isinstance(effect, ToAgent)]
        last: tuple[Any, bytes] = (None, b"")
        sizes = []
        for order in orders:  # an order to many nodes is encoded once
            if order.message is not last[0]:
                last = (order.message, self._encode(Order(term=order.term, message=order.message)))
            sizes.append(len(last[1]))
        self.usage.spend(time.process_time() - began, to)
        for order, size in zip(orders, sizes, strict=True):
            self._count_out(type(order.message).__name__, size)
            self._deliver(order.node, order.term, order.message)

    def _count_in(self, message: Any, data: bytes) -> None:
        name = type(message).__name__
        self.usage.messages[name] += 1
        self.usage.bytes_in[name] += len(data)

    def _count_out(self, name: str, size: int) -> None:
        usage = self.usage
        usage.messages[name] += 1
        usage.bytes_out[name] += size
        if name == "Plan":
            usage.plans_done_s = usage.cpu_s
        elif name == "Go":
            usage.gos_done_s = usage.cpu_s


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
