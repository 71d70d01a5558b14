"""One long run: outages come, the real coordinator core decides, light nodes answer, and quiet time is skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, assert_never

from deadpool.protocol.coordinator.job import Phase
from deadpool.protocol.coordinator.leadership.leadership import Leadership
from deadpool.protocol.coordinator.outbox import CoordinatorConfig, Deadlines
from deadpool.protocol.effects import Drop, Emit, Finish, ToAgent
from deadpool.protocol.identity import Layout, Schedule
from deadpool.protocol.inputs import CoordinatorInput, DrainAsked, FromAgent, LinkLost, Tick
from deadpool.protocol.messages import Heartbeat, Settings, TrainerLost
from deadpool_lab.sim.clock import Clock
from deadpool_lab.sim.endurance.light_node import Answers, LightNode
from deadpool_lab.sim.endurance.setup import DAY_S, RACK, EnduranceSetup, Hit, Lived, Outage, hits
from deadpool_lab.sim.endurance.training import Training

LONG_S = 1e9
NODE_TIMEOUT_S = 5.0
DRAIN_RETRY_S = 600.0
Progress = Callable[[float], None]
"""A call that is told now and then how many of the seconds have passed."""


class LongRun:
    def __init__(self, setup: EnduranceSetup, seed: int) -> None:
        self.setup, self.seed = setup, seed
        self.clock, self.lived = Clock(), Lived()
        self.layout = Layout(positions=setup.nodes, per_node=setup.per_node, holders=setup.scheme.losses)
        self.core = Leadership(_config(setup, self.layout), name="c0", founds=True)
        self.nodes: dict[str, LightNode] = {}
        self.incarnations = 0
        self.parting: dict[str, float] = {}  # nodes that are drained: how long they will be away
        self.training = Training(self)
        self.answers = Answers(self)

    # --- the run ------------------------------------------------------------------------------------------------------

    def run(self, progress: Progress | None = None) -> Lived:
        end_s = self.setup.days * DAY_S
        for index in range(self.setup.nodes + self.setup.spares):
            self._join(index, spare=index >= self.setup.nodes)
        coming = hits(self.setup, self.seed)
        self._expect(coming)
        self.clock.at(end_s, self._stop)
        while self.lived.ended is None and self.clock.advance():
            if progress is not None:
                progress(self.clock.now)
            if self.clock.now >= end_s:
                break
        self.training.end(self.clock.now)
        return self.lived

    def _stop(self) -> None:
        pass  # an event at the end, so that time comes there

    def _expect(self, coming: Iterator[tuple[Hit, Outage]]) -> None:
        """The next outage; the one after it is drawn when this one has come."""
        found = next(coming, None)
        if found is not None:
            self.clock.at(found[0].at, lambda: self._on_outage(*found, coming))

    def _on_outage(self, hit: Hit, outage: Outage, coming: Iterator[tuple[Hit, Outage]]) -> None:
        self._break(hit, outage)
        self._expect(coming)

    def tell(self, input: CoordinatorInput) -> None:
        """The only way to the core."""
        if self.lived.ended is not None:
            return
        self.lived.core_steps += 1
        for effect in self.core.step(input, now=self.clock.now):
            match effect:
                case ToAgent(node=node, message=message):
                    if node in self.nodes:
                        self.answers.on_message(self.nodes[node], message)
                case Emit(event=event):
                    self._note(event.what, event.step, event.detail)
                case Finish(reason=reason):
                    self.lived.ended = reason
                case Drop():
                    pass  # who is dropped is gone already
                case _ as never:
                    assert_never(never)

    def say(self, node: LightNode, message: Any) -> None:
        """What an agent would send; nothing if the node is gone since."""
        if self.nodes.get(node.name) is node:
            self.tell(FromAgent(node=node.name, message=message))

    def _note(self, what: str, step: int | None, detail: dict[str, Any]) -> None:
        match what:
            case "planned":
                self.training.plan(step or 0, detail)
            case "awaiting_spare":
                self.training.wait()
                self.clock.after(detail["deadline_s"], self._end_patience)
            case "go":
                self.training.go()
            case "fence" | "handover":
                self.training.stop()
            case "drain_refused" | "drain_failed":
                self.lived.refused_drains += 1

    def _end_patience(self) -> None:
        """Every node that is there has sent heartbeats all the time."""
        if self.core.coordinator.phase is Phase.WAITING:
            self.beat()
            self.tell(Tick())

    def beat(self) -> None:
        generation, reached = self.core.coordinator.generation, self.training.reached()
        for node in list(self.nodes.values()):
            self.say(node, Heartbeat(generation=generation, steps=tuple((rank, reached) for rank in node.ranks)))

    # --- nodes come and go --------------------------------------------------------------------------------------------

    def rack_of(self, index: int) -> int | None:
        return index // self.setup.nodes_per_rack if self.setup.nodes_per_rack else None

    def _join(self, index: int, *, spare: bool) -> None:
        name, rack = f"n{index}", self.rack_of(index)
        self.incarnations += 1
        label = f"r{rack}" if self.setup.racks_known and rack is not None else None
        node = LightNode(name, f"{name}.{self.incarnations}", label, self.layout)
        self.nodes[name] = node
        self.say(node, node.join(spare))
        if spare:
            self.say(node, node.park())

    def _break(self, hit: Hit, outage: Outage) -> None:
        if outage.kind == RACK:
            first = hit.where * self.setup.nodes_per_rack
            broken = range(first, min(first + self.setup.nodes_per_rack, self.setup.nodes + self.setup.spares))
        else:
            broken = range(hit.where, hit.where + 1)
        there = [index for index in broken if f"n{index}" in self.nodes]
        if not there:
            return
        self.lived.interruptions[outage.name] += 1
        match outage.kind:
            case "node" | "rack":
                for index in there:
                    self._lose(index, hit.away_s)
            case "process":
                self._lose_process(self.nodes[f"n{there[0]}"])
            case "planned":
                self._drain(there[0], hit.away_s)

    def _lose(self, index: int, away_s: float) -> None:
        """Training stands still at once; that the node is gone is known a little later."""
        name = f"n{index}"
        if self.nodes[name].ranks:
            self.training.stand_still(node_lost=True)
        node = self.nodes.pop(name)
        self.parting.pop(name, None)
        self.clock.after(self.setup.durations.detect_node_s, lambda: self._report_lost(node, index, away_s))

    def _report_lost(self, node: LightNode, index: int, away_s: float) -> None:
        self.tell(LinkLost(node=node.name, reason="connection reset"))
        self.clock.after(away_s, lambda: self._join(index, spare=True))

    def _lose_process(self, node: LightNode) -> None:
        if not node.ranks:
            return  # a parked process that dies is replaced by another one
        rank = node.ranks[int(self.clock.now) % len(node.ranks)]
        node.lost.add(rank)
        self.training.stand_still(node_lost=False)
        generation = self.core.coordinator.generation
        lost = TrainerLost(generation=generation, trainer=f"{node.name}.t", rank=rank, reason="killed by signal 6")
        self.clock.after(self.setup.durations.detect_process_s, lambda: self.say(node, lost))

    # --- nodes that leave on purpose ----------------------------------------------------------------------------------

    def _drain(self, index: int, away_s: float) -> None:
        """An operator asks when there is a spare, and again until it is done. A node without a rank leaves at once."""
        name = f"n{index}"
        node = self.nodes.get(name)
        if node is None:
            return
        before = self.lived.refused_drains
        self.parting[name] = away_s
        asks = self.training.is_running and (not node.ranks or any(not each.ranks for each in self.nodes.values()))
        if asks:
            self.training.commit()
            self.beat()
            self.tell(DrainAsked(node=name, reason="maintenance"))
        if not asks or self.lived.refused_drains > before:
            self.parting.pop(name, None)
            self.clock.after(DRAIN_RETRY_S, lambda: self._drain(index, away_s))

    def on_shutdown(self, node: LightNode) -> None:
        """Takes away a node that was let go, which comes back after its maintenance."""
        index = int(node.name[1:])
        self.nodes.pop(node.name, None)
        away_s = self.parting.pop(node.name, 0.0)
        self.clock.after(away_s, lambda: self._join(index, spare=True))


def _config(setup: EnduranceSetup, layout: Layout) -> CoordinatorConfig:
    """No phase is given up: how long each takes is given, and a node that is lost says so by its link."""
    settings = Settings(layout=layout, slots=3, heartbeat_s=NODE_TIMEOUT_S / 5, unwind_s=LONG_S, overhead_budget=0.0)
    deadlines = Deadlines(
        node_s=NODE_TIMEOUT_S,
        fence_s=LONG_S,
        prepare_s=LONG_S,
        connect_s=LONG_S,
        spare_wait_s=setup.spare_wait_s,
        hang_s=LONG_S,
    )
    return CoordinatorConfig(
        settings=settings, deadlines=deadlines, schedule=Schedule(every=setup.capture_every), scheme=setup.scheme
    )
