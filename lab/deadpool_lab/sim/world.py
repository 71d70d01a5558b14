"""The world of one seed: coordinators, machines, the network between them, and virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from deadpool.protocol.agent.copies.slot_growth import ARENA_SHARE
from deadpool.protocol.causes import AdaptiveBounds, DurableSettings
from deadpool.protocol.coordinator.core import Coordinator
from deadpool.protocol.coordinator.job import Phase
from deadpool.protocol.coordinator.outbox import CoordinatorConfig, Deadlines
from deadpool.protocol.effects import Finish
from deadpool.protocol.identity import Address, Generation, Layout, Schedule, Version
from deadpool.protocol.inputs import DrainAsked, FromAgent, SchemeAsked
from deadpool.protocol.messages import Settings, Shares
from deadpool.protocol.schemes import Scheme
from deadpool_lab.sim.checking.checkers import Checkers
from deadpool_lab.sim.checking.history import History
from deadpool_lab.sim.clock import Clock, LocalClock, Reductions
from deadpool_lab.sim.durable_store import DurableStore
from deadpool_lab.sim.hosts import CoordinatorLink, Host
from deadpool_lab.sim.machine import Machine
from deadpool_lab.sim.network import VirtualNetwork
from deadpool_lab.sim.options import SeedOptions
from deadpool_lab.sim.process.captures import full_geometry
from deadpool_lab.sim.streams import CopyStreams

HEARTBEAT_S = 1.0
DEADLINES = Deadlines(node_s=5.0, fence_s=14.0, prepare_s=60.0, connect_s=20.0, spare_wait_s=40.0, hang_s=25.0)
PATIENT_S = 300.0
"""The time after which a job that may shrink, and cannot, has waited for a spare for too long: there are few of them.
"""
UNWIND_S = 6.0
ENDLESS = 1_000_000
SHORT_EVERY_S, SHORT_FOR_S = 40.0, 8.0
"""In a third of the seeds in which slots grow, memory is short for a while, again and again."""
SLOW_AND_FAST_S = 16.0
LEFT_OUT_OF = 8
"""The number of captures of which some are left out: more often than in a real job, which lasts longer."""
DEAF_IN_PEACE_S = 6.0
SILENCE_S = 5.0
ISOLATION_S = 60.0
DWELL_S = 6.0
"""The time that a change of protection stays, and over which signs of illness are counted."""
ROOMY_SHARE = 0.2
DURABLE = DurableSettings(where="store", job="sim", every_s=6.0, timeout_s=60.0)


class World:
    def __init__(self, options: SeedOptions, *, story: bool = False) -> None:
        self.options = options
        self.rng = random.Random(options.seed + 1_000_003)
        self.clock = Clock()
        self._healing: list[Callable[[], None]] = []
        self.layout = Layout(positions=options.nodes, per_node=options.per_node, holders=options.holders)
        self.history = History(
            self.layout.world_size, options.shards, exact=options.exact, repeats=bool(options.audit_every)
        )
        self.checkers = Checkers(self)
        self.reductions = Reductions(self)
        self.streams = CopyStreams(self)
        self.durable = DurableStore(self)
        self.machines: dict[str, Machine] = {}  # the newest of each name
        self.incarnations: dict[str, Machine] = {}
        self.network = VirtualNetwork(self)
        self.hosts = [Host(self, f"c{index}") for index in range(1 + options.standbys)]
        self.closed_connections: set[CoordinatorLink] = set()  # closed by one side
        self.leading_host = self.hosts[0]  # the host of that coordinator
        self.coordinator: Coordinator  # of the highest term, dead or alive
        self.calm = False
        self.copies_share = ROOMY_SHARE  # of a machine's memory that whole copies take
        self.last_step = options.ends_at or ENDLESS
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
            durable=DURABLE if self.options.durable else None,
            adaptive=self._adaptive_bounds,
            without_spare="shrink" if self.options.shards else "wait",
            audit_every=self.options.audit_every,
            audit_spares_every=self.options.audit_spares,
        )
        schedule = Schedule(every=self.options.every, left_out_of=LEFT_OUT_OF if self.options.budget else 0)
        scheme = Scheme.parse(self.options.scheme) if self.options.scheme else None
        deadlines = replace(DEADLINES, spare_wait_s=PATIENT_S) if self.may_shrink else DEADLINES
        return CoordinatorConfig(settings=settings, deadlines=deadlines, schedule=schedule, scheme=scheme)

    @property
    def _adaptive_bounds(self) -> AdaptiveBounds | None:
        if not self.options.adaptive:
            return None
        most = min(self.options.holders + 1, self.options.nodes - 1)
        coded = Scheme.parse(self.options.coded) if self.options.coded else None
        return AdaptiveBounds(copies_at_most=most, evict_ill=self.options.evict, dwell_s=DWELL_S, in_groups=coded)

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
        """Time for a capture, or for the checksum of one: long for some while, then short again."""
        slow = self.options.budget and self.clock.now % SLOW_AND_FAST_S < SLOW_AND_FAST_S / 2
        return 0.1 if self.calm else self.options.copy_s if slow else 0.5

    @property
    def deaf_s(self) -> float:
        return min(self.options.deaf_s, DEAF_IN_PEACE_S) if self.calm else self.options.deaf_s

    @property
    def load_s(self) -> float:
        return 1.0 if self.calm else self.options.load_s

    @property
    def give_up(self) -> float:
        return 0.0 if self.calm else self.options.give_up

    def heal_at_peace(self, action: Callable[[], None]) -> None:
        """Faults that last are over at the latest when the liveness phase begins."""
        self._healing.append(action)

    def heal(self) -> None:
        for action in self._healing:
            action()

    # --- the job -----------------------------------------------------------------------------------------------------

    @property
    def may_shrink(self) -> bool:
        return self.options.shards > 0

    @property
    def replica_bytes(self) -> int:
        return 200 if self.options.replicated else 0

    @property
    def slots_grow(self) -> bool:
        return self.options.slots == 0

    @property
    def memory_for_slots(self) -> int:
        """Returns the memory of every machine where slots grow: for three to a dozen of each rank, by the seed."""
        copies = (3 + self.options.seed % 10) * self.options.per_node * (1 + self.options.holders)
        return int(copies * full_geometry(self).slot_bytes / ARENA_SHARE)

    @property
    def is_memory_short(self) -> bool:
        return self.options.seed % 3 == 0 and self.clock.now % SHORT_EVERY_S < SHORT_FOR_S

    @property
    def memory_bytes(self) -> int:
        """Returns the memory of every machine; 0 means that nobody looks at it."""
        if not self.options.coded:
            return 0
        slot_bytes = full_geometry(self).slot_bytes
        copies = self.options.slots * self.options.per_node * (1 + self.options.holders)
        return int(copies * slot_bytes / (ROOMY_SHARE if self.calm else self.copies_share))

    def peers_of(self, rank: int) -> tuple[int, ...]:
        """The ranks on other nodes that hold the replica region too; where they may be carried, those of its shard."""
        if self.may_shrink:
            return tuple(range(*self.shares_of(rank).replicas))
        if not self.options.replicated:
            return ()
        home = self.layout.position_of(rank)
        return tuple(r for r in range(self.layout.world_size) if self.layout.position_of(r) != home)

    def shares_of(self, rank: int) -> Shares:
        """Returns shares as the script's layout has them: replicas of all tensors, each of as many ranks as there are
        shards.
        """
        shards = self.options.shards
        first = rank - rank % shards
        return Shares(replicas=(rank % shards, self.layout.world_size, shards), block=(first, first + shards, 1))

    @property
    def allowed_lag(self) -> int:
        """Without faults a copy takes less than a step, so a version is missed only where a trainer learns late of a
        change of the interval."""
        return 6 + self.every + (8 if self.options.budget else 0)

    @property
    def every(self) -> int:
        return self.coordinator.commits.timetable.newest.every

    def stepped(self, version: Version) -> None:
        self.steps += 1
        self.steps_since_go += 1
        self.newest = max(self.newest, version.number)
        self.checkers.on_step(version)

    def add_machine(self, name: str, *, spare: bool) -> Machine:
        """Any earlier machine of that name has died."""
        machine = Machine(self, name, spare=spare, life=self.next_number())
        self.machines[name] = self.incarnations[machine.incarnation] = machine
        machine.join()
        return machine

    def machine_at(self, node: str) -> Machine:
        """The machine that the coordinator knows by that name."""
        member = self.coordinator.members.get(node)
        return self.incarnations[member.incarnation] if member else self.machines[node]

    # --- coordinators ------------------------------------------------------------------------------------------------

    def note_leader(self, host: Host) -> None:
        """The leader of the highest term is the coordinator of this world."""
        if host.leadership.is_leader and host.coordinator.term >= self.coordinator.term:
            self.leading_host, self.coordinator = host, host.coordinator

    def feed(self, input: FromAgent | DrainAsked | SchemeAsked) -> None:
        """Feeds an input that a node, or a person, would give."""
        if self.leading_host.alive and self.leading_host.coordinator is self.coordinator:
            self.leading_host.feed(input)
            if isinstance(input, SchemeAsked):
                self.checkers.protection.on_scheme_asked(self.leading_host, input.scheme)

    def finished(self, host: Host, finish: Finish) -> None:
        """The end of a coordinator that was replaced ends only its own process."""
        if host.coordinator is self.coordinator or not self.options.standbys:
            self.outcome = finish
        else:
            host.die()

    def on_event_of(self, host: Host, what: str, detail: dict[str, Any]) -> None:
        if what == "no_plan":
            self.checkers.on_no_plan(detail["ranks"])
        if host.coordinator is self.coordinator:
            self.checkers.drain.on_event(what, detail)
            self.checkers.protection.on_event(host, what, detail)
            self.checkers.rehearsals.on_event(what)
            self.checkers.progress.on_event(what, detail)
            self.checkers.corruption.on_event(what, detail)
            self.checkers.step_audits.on_event(what, detail)
            if what == "corruption_unsolved":
                self.clock.stop()  # from here on nothing is to be expected of this job
        if what == "took_over":
            self.checkers.on_takeover(host.coordinator, running=detail["running"])
        if what == "go":
            self.steps_since_go = 0
        self.on_event(what)
        if what in ("awaiting_spare", "shrunk"):
            self.on_waiting()

    @property
    def has_running_job(self) -> bool:
        """A coordinator leads, and the job runs."""
        return (
            self.leading_host.alive
            and self.leading_host.leadership.is_leader
            and self.coordinator.phase is Phase.RUNNING
        )

    @property
    def has_lost_majority(self) -> bool:
        """The majority of the nodes that ran last, or of a plan since then that may have gone. Without it no
        coordinator of several can know that it is the only one."""
        newer = self.checkers.newer_seats.items()
        few = 2 * len(self.surviving_voters) <= self.layout.positions
        lost = few or any(self._may_have_gone_with(*plan) for plan in newer)
        return self.options.standbys > 0 and lost

    def _may_have_gone_with(self, generation: Generation, seats: tuple[Machine, ...]) -> bool:
        """Some node is left that has heard that plan, most of its seats are lost, and no node can prove that it has not
        gone. A node proves that if it ran before, has a seat in the plan, and has not heard it."""
        there = [machine for machine in seats if not machine.is_lost]
        heard = [machine for machine in there if _knows_its_seat_in(generation, machine)]
        left_out = [machine for machine in self.surviving_seats if machine in there and machine not in heard]
        return bool(heard) and 2 * len(heard) <= self.layout.positions and not left_out

    @property
    def surviving_voters(self) -> list[Machine]:
        """The surviving seats that know of their seat. A node that was cut off from the founding before it heard of its
        own seat, and was a spare then, cannot report that nothing has run without it (seed 10749)."""
        last = self.checkers.last_generation
        return [machine for machine in self.surviving_seats if _knows_its_seat_in(last, machine)]

    @property
    def surviving_seats(self) -> list[Machine]:
        """The seats of the last generation that went, or was founded, that no fault has taken. A node that ended by
        itself counts as surviving."""
        return [machine for machine in self.checkers.last_seats if not machine.is_lost]

    # --- the story ---------------------------------------------------------------------------------------------------

    def log(self, actor: str, what: str, detail: dict[str, Any]) -> None:
        if self.story is not None:
            facts = " ".join(f"{key}={value}" for key, value in detail.items() if value is not None)
            self.story.append(f"{self.clock.now:8.3f}  {actor:12} {what} {facts}".rstrip())


def _knows_its_seat_in(generation: Generation, machine: Machine) -> bool:
    """Tells whether the machine had a seat in that generation and has heard so."""
    footing = machine.agent.footing
    return footing.electorate >= generation or footing.seat_in(generation) is not None
