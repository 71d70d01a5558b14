"""The world of one seed: the real coordinator, machines, links between them, and virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from deadpool.protocol.coordinator import Coordinator
from deadpool.protocol.deadlines import Deadlines
from deadpool.protocol.effects import Drop, Emit, Finish, FromAgent, LinkLost, Tick, ToAgent
from deadpool.protocol.messages import Settings
from deadpool.protocol.topology import Layout, Schedule
from deadpool.sim.checkers import Checkers
from deadpool.sim.clock import Clock
from deadpool.sim.history import History
from deadpool.sim.machine import Machine
from deadpool.sim.options import Options
from deadpool.sim.reduction import Reductions
from deadpool.sim.streams import Streams

HEARTBEAT_S = 1.0
DEADLINES = Deadlines(node_s=5.0, fence_s=14.0, prepare_s=60.0, connect_s=20.0, spare_wait_s=40.0, hang_s=25.0)
UNWIND_S = 6.0
ENDLESS = 1_000_000


class World:
    def __init__(self, options: Options, *, story: bool = False) -> None:
        self.options = options
        self.rng = random.Random(options.seed + 1_000_003)
        self.clock = Clock()
        self.layout = Layout(positions=options.nodes, per_node=options.per_node, holders=options.holders)
        self.history = History(self.layout.world_size)
        self.checkers = Checkers(self)
        self.reductions = Reductions(self)
        self.streams = Streams(self)
        self.machines: dict[str, Machine] = {}
        self.coordinator = self._coordinator()
        self.calm = False
        self.last_step = ENDLESS
        self.newest = 0
        self.steps = 0  # completed by any rank, redone ones included
        self.outcome: Finish | None = None
        self.story: list[str] | None = [] if story else None
        self.on_event: Callable[[str], None] = lambda what: None
        self.on_waiting: Callable[[], None] = lambda: None
        self._numbers = 0
        self._wakes_at: float | None = None

    def _coordinator(self) -> Coordinator:
        settings = Settings(
            layout=self.layout,
            slots=self.options.slots,
            heartbeat_s=HEARTBEAT_S,
            unwind_s=UNWIND_S,
        )
        schedule = Schedule(every=self.options.every)
        return Coordinator(settings=settings, deadlines=DEADLINES, schedule=schedule)

    # --- chance and time ---------------------------------------------------------------------------------------------

    def after(self, longest_s: float, action: Callable[[], None]) -> None:
        self.clock.after(longest_s * (0.05 + 0.95 * self.rng.random()), action)

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def latency_s(self) -> float:
        return 0.005 if self.calm else self.options.latency_s

    @property
    def push_s(self) -> float:
        return 0.1 if self.calm else self.options.push_s

    @property
    def copy_s(self) -> float:
        """For a capture, or for the checksum of one."""
        return 0.1 if self.calm else 0.5

    @property
    def give_up(self) -> float:
        return 0.0 if self.calm else self.options.give_up

    # --- the job -----------------------------------------------------------------------------------------------------

    @property
    def replica_bytes(self) -> int:
        return 200 if self.options.replicated else 0

    def peers_of(self, rank: int) -> tuple[int, ...]:
        """Ranks on other nodes that hold the replica region too."""
        if not self.options.replicated:
            return ()
        home = self.layout.position_of(rank)
        return tuple(r for r in range(self.layout.world_size) if self.layout.position_of(r) != home)

    @property
    def allowed_lag(self) -> int:
        """In peace a copy takes less than a step, so versions are hardly ever missed."""
        return 6 + self.options.every

    def stepped(self, number: int) -> None:
        self.steps += 1
        self.newest = max(self.newest, number)

    def add_machine(self, name: str, *, spare: bool) -> None:
        self.machines[name] = Machine(self, name, spare=spare)
        self.machines[name].join()

    # --- the coordinator's driver ------------------------------------------------------------------------------------

    def hear(self, machine: Machine, message: Any) -> None:
        """None is the end of the link."""
        if message is None:
            self.feed(LinkLost(node=machine.name, reason="closed"))
        else:
            self.checkers.heard(message)
            self.feed(FromAgent(node=machine.name, message=message))

    def feed(self, input: Any) -> None:
        if self.outcome is not None:
            return
        effects = self.coordinator.step(input, now=self.clock.now)
        self.coordinator.check()
        for effect in effects:
            self._perform(effect)
        self._arm()

    def _perform(self, effect: Any) -> None:
        match effect:
            case ToAgent(node=node, message=message):
                self.checkers.said(message)
                self.machines[node].downlink.send(message)
            case Drop(node=node):
                self._dropped(self.machines[node])
            case Emit(event=event):
                detail = {"rank": event.rank, "step": event.step, "node": event.node, **event.detail}
                self.tell("coordinator", event.what, {"gen": event.generation, **detail})
                self._look_at(event.what, event.detail)
            case Finish():
                self.outcome = effect

    def _look_at(self, what: str, detail: dict[str, Any]) -> None:
        if what == "no_plan":
            self.checkers.no_plan(detail["ranks"])
        self.on_event(what)
        if what == "waiting":
            self.on_waiting()

    def _dropped(self, machine: Machine) -> None:
        """Its link is closed. An agent that lives on finds out, and ends."""
        machine.uplink.cut = True
        if machine.alive:
            self.after(2.0, machine.die)

    def _arm(self) -> None:
        wake = self.coordinator.deadline()
        if wake is not None and (self._wakes_at is None or wake < self._wakes_at):
            self._wakes_at = wake
            self.clock.at(wake, self._tick)

    def _tick(self) -> None:
        if self._wakes_at is not None and self.clock.now >= self._wakes_at:
            self._wakes_at = None
            self.feed(Tick())
            self._arm()

    # --- the story ---------------------------------------------------------------------------------------------------

    def tell(self, who: str, what: str, detail: dict[str, Any]) -> None:
        if self.story is not None:
            facts = " ".join(f"{key}={value}" for key, value in detail.items() if value is not None)
            self.story.append(f"{self.clock.now:8.3f}  {who:12} {what} {facts}".rstrip())
