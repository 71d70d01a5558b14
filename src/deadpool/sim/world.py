"""The world of one seed: coordinators, machines, what can be reached from where, and virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from deadpool.protocol.coordinator.config import CoordinatorConfig, Deadlines
from deadpool.protocol.coordinator.core import Coordinator
from deadpool.protocol.coordinator.job import Phase
from deadpool.protocol.effects import DrainAsked, Finish, FromAgent
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import Settings
from deadpool.protocol.topology import Address, Layout, Schedule
from deadpool.sim.checkers import Checkers
from deadpool.sim.clock import Clock, LocalClock
from deadpool.sim.history import History
from deadpool.sim.hosts import Connection, Host
from deadpool.sim.machine import Machine
from deadpool.sim.network import Network
from deadpool.sim.options import Options
from deadpool.sim.reduction import Reductions
from deadpool.sim.streams import Streams

HEARTBEAT_S = 1.0
DEADLINES = Deadlines(node_s=5.0, fence_s=14.0, prepare_s=60.0, connect_s=20.0, spare_wait_s=40.0, hang_s=25.0)
UNWIND_S = 6.0
ENDLESS = 1_000_000
SLOW_AND_FAST_S = 16.0
DEAF_IN_PEACE_S = 6.0
SILENCE_S = 5.0
ISOLATION_S = 60.0


class World:
    def __init__(self, options: Options, *, story: bool = False) -> None:
        self.options = options
        self.rng = random.Random(options.seed + 1_000_003)
        self.clock = Clock()
        self._healing: list[Callable[[], None]] = []
        self.layout = Layout(positions=options.nodes, per_node=options.per_node, holders=options.holders)
        self.history = History(self.layout.world_size)
        self.checkers = Checkers(self)
        self.reductions = Reductions(self)
        self.streams = Streams(self)
        self.machines: dict[str, Machine] = {}  # the last of each name
        self.incarnations: dict[str, Machine] = {}
        self.network = Network(self)
        self.hosts = [Host(self, f"c{index}") for index in range(1 + options.standbys)]
        self.over: set[Connection] = set()  # closed by one side
        self.present = self.hosts[0]  # where the coordinator of the highest term was or is
        self.coordinator: Coordinator  # of the highest term, dead or alive
        self.calm = False
        self.last_step = ENDLESS
        self.newest = 0
        self.steps = 0  # completed by any rank, redone ones included
        self.outcome: Finish | None = None
        self.story: list[str] | None = [] if story else None
        self.on_event: Callable[[str], None] = lambda what: None
        self.on_waiting: Callable[[], None] = lambda: None
        self.steps_since_go = 0
        self._numbers = 0
        self._wakes_at: float | None = None

    def start(self) -> None:
        self.hosts[0].start(self.charter, founds=True)
        for host in self.hosts[1:]:
            host.start(self.charter, founds=False)
        self.coordinator = self.hosts[0].coordinator

    @property
    def charter(self) -> CoordinatorConfig:
        settings = Settings(
            layout=self.layout,
            slots=self.options.slots,
            heartbeat_s=HEARTBEAT_S,
            unwind_s=UNWIND_S,
            overhead_budget=self.options.budget,
            coordinators=tuple(Address(host=host.name, port=1) for host in self.hosts),
            silence_s=SILENCE_S,
            isolation_s=ISOLATION_S,
        )
        return CoordinatorConfig(settings=settings, deadlines=DEADLINES, schedule=Schedule(every=self.options.every))

    # --- chance and time ---------------------------------------------------------------------------------------------

    def after(self, longest_s: float, action: Callable[[], None]) -> None:
        self.clock.after(longest_s * (0.05 + 0.95 * self.rng.random()), action)

    def local_clock(self) -> LocalClock:
        drift = self.options.drift
        rate = 1 + drift * (2 * self.rng.random() - 1) if drift else 1.0
        return LocalClock(self.clock, rate=rate, ahead_s=100 * self.rng.random() if drift else 0.0)

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
        """For a capture, or for the checksum of one. Long for some while, then short again."""
        slow = self.options.budget and self.clock.now % SLOW_AND_FAST_S < SLOW_AND_FAST_S / 2
        return 0.1 if self.calm else self.options.copy_s if slow else 0.5

    @property
    def deaf_s(self) -> float:
        return min(self.options.deaf_s, DEAF_IN_PEACE_S) if self.calm else self.options.deaf_s

    @property
    def give_up(self) -> float:
        return 0.0 if self.calm else self.options.give_up

    def heal_at_peace(self, action: Callable[[], None]) -> None:
        """Faults that last are over when the liveness phase begins, at the latest."""
        self._healing.append(action)

    def heal(self) -> None:
        for action in self._healing:
            action()

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
        """In peace a copy takes less than a step, so versions are hardly ever missed, but for want of hearing."""
        return 6 + self.every + (8 if self.options.budget else 0)

    @property
    def every(self) -> int:
        return self.coordinator.commits.timetable.newest.every

    def stepped(self, version: Version) -> None:
        self.steps += 1
        self.steps_since_go += 1
        self.newest = max(self.newest, version.number)
        self.checkers.stepped(version)

    def add_machine(self, name: str, *, spare: bool) -> Machine:
        """Another one of that name has died."""
        machine = Machine(self, name, spare=spare, life=self.next_number())
        self.machines[name] = self.incarnations[machine.incarnation] = machine
        machine.join()
        return machine

    def machine_at(self, node: str) -> Machine:
        """That the coordinator means by the name."""
        member = self.coordinator.members.get(node)
        return self.incarnations[member.incarnation] if member else self.machines[node]

    # --- coordinators ------------------------------------------------------------------------------------------------

    def took_office(self, host: Host) -> None:
        """Who is in office in the highest term is the coordinator."""
        if host.office.is_leader and host.coordinator.term >= self.coordinator.term:
            self.present, self.coordinator = host, host.coordinator

    def feed(self, input: FromAgent | DrainAsked) -> None:
        """As if a node, or a person, had said so."""
        if self.present.alive and self.present.coordinator is self.coordinator:
            self.present.feed(input)

    def finished(self, host: Host, finish: Finish) -> None:
        """One that somebody else has replaced ends only itself."""
        if host.coordinator is self.coordinator or not self.options.standbys:
            self.outcome = finish
        else:
            host.die()

    def look_at(self, host: Host, what: str, detail: dict[str, Any]) -> None:
        if what == "no_plan":
            self.checkers.no_plan(detail["ranks"])
        if host.coordinator is self.coordinator:
            self.checkers.handovers.look_at(what, detail)
        if what == "took_over":
            self.checkers.took_over(host.coordinator, running=detail["running"])
        if what == "go":
            self.steps_since_go = 0
        self.on_event(what)
        if what == "awaiting_spare":
            self.on_waiting()

    @property
    def is_in_charge(self) -> bool:
        """Somebody is in office, and the job runs."""
        return self.present.alive and self.present.office.is_leader and self.coordinator.phase is Phase.RUNNING

    @property
    def has_lost_majority(self) -> bool:
        """Of those that ran last, or of a plan since then that may have gone: then no coordinator of several can know
        that it is the only one."""
        newer = self.checkers.newer_seats.items()
        few = 2 * len(self.voters_there) <= self.layout.positions
        lost = few or any(self._may_have_gone_with(*plan) for plan in newer)
        return self.options.standbys > 0 and lost

    def _may_have_gone_with(self, generation: Generation, seats: tuple[Machine, ...]) -> bool:
        """Somebody is left who has heard that plan, most of its seats are lost, and nobody can say that it has not
        gone: that is who ran before, has a seat in it and has not heard it."""
        there = [machine for machine in seats if not machine.fallen]
        heard = [machine for machine in there if _knows_its_seat_in(generation, machine)]
        left_out = [machine for machine in self.seats_there if machine in there and machine not in heard]
        return bool(heard) and 2 * len(heard) <= self.layout.positions and not left_out

    @property
    def voters_there(self) -> list[Machine]:
        """Of them, who knows that it had a seat. One that was cut off from the founding before it heard of its own, and
        then was a spare, cannot report to anything, least of all that nothing has run without it (seed 10749)."""
        last = self.checkers.last_generation
        return [machine for machine in self.seats_there if _knows_its_seat_in(last, machine)]

    @property
    def seats_there(self) -> list[Machine]:
        """Of the last generation that went, or was founded: whom no fault has taken. Who gave up by itself is there."""
        return [machine for machine in self.checkers.last_seats if not machine.fallen]

    # --- the story ---------------------------------------------------------------------------------------------------

    def tell(self, who: str, what: str, detail: dict[str, Any]) -> None:
        if self.story is not None:
            facts = " ".join(f"{key}={value}" for key, value in detail.items() if value is not None)
            self.story.append(f"{self.clock.now:8.3f}  {who:12} {what} {facts}".rstrip())


def _knows_its_seat_in(generation: Generation, machine: Machine) -> bool:
    """It had one, and has heard so."""
    footing = machine.agent.footing
    return footing.electorate >= generation or footing.seat_in(generation) is not None
