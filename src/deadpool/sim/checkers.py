"""What must hold whatever happens: the checkers of the protocol, from what machines really hold, apart from the cores.

Each carries the letter it has in the protocol: (a) one birth per resume, (b) no garbage resumed, (c) protected stays
protected until the next loss, (d) protected and one loss give a plan at the watermark or newer, (e) overwritten means
permitted, (f) no commit below what is kept, (g) the watermark grows once faults have ended, (h) one holder of a rank
per generation, and no two generations that run, (i) no order of a lower term is obeyed after a promise, (j) no more
steps are lost than the bound allows, (k) Go means that everything newer than the resume version is gone, (l) one writer
per slot; and rules 4, 7, 14, 16, 17 and 18 themselves: a schedule begins where nobody is known to be yet, the permit
passes nothing that is on its way, a newcomer pulls the floor, a holder without the floor is sent nothing newer, a copy
shares its rank's rack only where other racks have no room, a successor permits no less than was permitted. Beside the
protocol: (recordings) nobody was told what an earlier start of the job was told; (drain) a node that leaves on purpose
costs no step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from deadpool.protocol.coordinator.core import Coordinator
from deadpool.protocol.identity import NO_GENERATION, Generation, Version
from deadpool.protocol.messages import Go, Missed, Order, Permit, Plan, SlotRef, TakeoverReport
from deadpool.protocol.topology import Schedule
from deadpool.sim.history import State
from deadpool.sim.loss_bound import Lateness

if TYPE_CHECKING:
    from deadpool.sim.hosts import Host
    from deadpool.sim.machine import Machine
    from deadpool.sim.process import Process
    from deadpool.sim.world import World


class Violation(Exception):
    """Something happened that must not."""


def fail(letter: str, text: str) -> None:
    raise Violation(f"({letter}) {text}")


class Handovers:
    """(drain) a node that leaves costs no step, unless something else happens at the same time."""

    def __init__(self) -> None:
        self._undisturbed = False

    def look_at(self, what: str, detail: dict[str, Any]) -> None:
        match what:
            case "handover":
                self._undisturbed = True
            case "fault" | "took_over":
                self._undisturbed = False
            case "planned":
                if self._undisturbed and detail["lost_steps"]:
                    fail("drain", f"a node leaves, and {detail['lost_steps']} steps are done again")
                self._undisturbed = False


class Checkers:
    def __init__(self, world: World) -> None:
        self._world = world
        self._generation: Generation | None = None
        self._resume: Version | None = None
        self._starts: list[Generation | None] = [None]  # from the first line, that went: others told nobody anything
        self._origins: dict[Generation, tuple[Version | None, Generation | None]] = {}  # what it resumes, which start
        self._permit: Permit | None = None
        self._schedules: list[Schedule] = []  # of this generation, as they were said
        self._watermarks: dict[Generation, Version] = {}  # the newest that anybody was told of
        self._missed: set[tuple[Generation, int]] = set()
        self._runners: dict[tuple[Generation, int], int] = {}
        self._promised: Version | None = None  # a loss was survivable: the next plan is here or newer
        self._disturbed = False  # coordinators come and go: nobody can tell how many losses that is
        self._ran: Generation = NO_GENERATION  # the newest in which all ranks met
        self.last_generation: Generation = NO_GENERATION  # the last that went, or the founding one
        self.last_seats: tuple[Machine, ...] = ()  # of it
        self.newer_seats: dict[Generation, tuple[Machine, ...]] = {}  # of plans since then
        self.finished_ranks: set[int] = set()
        self._lateness = Lateness(world)
        self.handovers = Handovers()

    # --- the coordinator's words, as they leave it -------------------------------------------------------------------

    def said(self, host: Host, message: Any) -> None:
        """One that was replaced may say what it likes: nobody obeys it, which is looked at elsewhere."""
        if isinstance(message, Plan):
            self._world.history.planned(message.generation, message.resume)
        if host.coordinator is not self._world.coordinator:
            return
        match message:
            case Plan(generation=generation) if generation != self._generation:
                self._planned(message)
            case Permit() if self._permit is None:
                self._adopted(message)
            case Permit() if message != self._permit:
                self._committed(message)
            case Go(generation=generation):
                self._went(generation)
            case _:
                pass

    def took_over(self, coordinator: Coordinator, *, running: bool) -> None:
        """What the last one said of late may have reached nobody."""
        if coordinator is self._world.coordinator:
            self._permit = None
            self._disturbed = not running

    def _adopted(self, permit: Permit) -> None:
        """Rule 18: it keeps no less from being overwritten than what any seat has been told to keep."""
        for node in self._world.coordinator.seats:
            obeyed = self._world.machine_at(node).arena.permit
            if obeyed is not None and obeyed.keep_from > permit.keep_from:
                fail("18", f"{permit} is adopted, {node} was told {obeyed}")
        self._permit = permit
        if permit.schedule in self._schedules:
            self._schedules = self._schedules[: self._schedules.index(permit.schedule) + 1]

    def _planned(self, plan: Plan) -> None:
        self._generation, self._resume, self._permit = plan.generation, plan.resume, plan.permit
        self._schedules = [plan.permit.schedule]
        seats = tuple(map(self._world.machine_at, self._world.coordinator.seats))
        if plan.generation.is_founding:
            self.last_generation, self.last_seats = plan.generation, seats
        else:
            self.newer_seats[plan.generation] = seats
        self._origins[plan.generation] = (plan.resume, plan.generation if plan.resume is None else self._starts[-1])
        promised, self._promised = self._promised, None
        if promised is not None and (plan.resume is None or plan.resume.number < promised.number):
            fail("d", f"{promised} was protected, one loss, and the plan resumes from {plan.resume}")

    def _committed(self, permit: Permit) -> None:
        before, self._permit = self._permit, permit
        assert before is not None
        if permit.schedule != self._schedules[-1]:
            self._rescheduled(permit.schedule, before)
        if permit.generation != before.generation:
            return
        if permit.watermark == before.watermark:
            self._passed(before, permit)
            return
        watermark = permit.watermark
        if watermark is None or watermark.number < before.keep_from:
            fail("f", f"{watermark} committed, {before.keep_from} and newer were kept")
        elif missing := self._missing(watermark):
            fail("f", f"{watermark} committed without {missing}")

    def _rescheduled(self, schedule: Schedule, before: Permit) -> None:
        """Rule 4: nothing that the permit has passed already, or that a rank is known to have reached, is changed."""
        known = max((step for m in self._world.coordinator.members.values() for step in m.steps.values()), default=0)
        if schedule.start <= known + 2 or schedule.start < before.keep_from:
            fail("4", f"{schedule} begins too early: a rank has reached {known}, the permit {before.keep_from}")
        self._schedules.append(schedule)

    def _is_scheduled(self, number: int) -> bool:
        return [schedule for schedule in self._schedules if schedule.start <= number][-1].captures(number)

    def _passed(self, before: Permit, permit: Permit) -> None:
        """Rule 7: without a commit only versions that nobody captures, or that some rank missed, are passed."""
        for number in range(before.keep_from, permit.keep_from):
            if self._is_scheduled(number) and (permit.generation, number) not in self._missed:
                fail("7", f"version {number} was on its way, and the permit passed it: {permit}")

    def heard(self, message: Any) -> None:
        """What the coordinator is told, as it arrives."""
        match message:
            case Missed(generation=generation, number=number):
                self._missed.add((generation, number))
            case TakeoverReport(footing=footing, missed=missed):
                self._missed |= {(footing.planned, number) for number in missed}

    def _went(self, generation: Generation) -> None:
        self._disturbed = False
        self._starts.append(self._origins[generation][1])
        self.last_generation = generation
        self.last_seats = tuple(map(self._world.machine_at, self._world.coordinator.seats))
        self.newer_seats.clear()
        for node in self._world.coordinator.seats:
            for rank, version in self._on_shelves(node):
                if self._resume is None or version.number > self._resume.number:
                    fail("k", f"Go of {generation} at {self._resume}: {node} still has {version} of rank {rank}")

    # --- losses ------------------------------------------------------------------------------------------------------

    def before_loss(self, *, nodes: int) -> None:
        """Called just before machines or processes die."""
        coordinator = self._world.coordinator
        self._look_at_lateness()
        self._lateness.disturbed()
        if self._promised is not None or self._disturbed:
            self._promised = None  # a second loss before the plan
            return
        if not coordinator.commits.protected or coordinator.phase.value != "running":
            return
        watermark = coordinator.commits.permit.watermark
        assert watermark is not None
        if self._all_seats_alive():
            if missing := self._missing(watermark):
                fail("c", f"{watermark} is called protected, but {missing} is not there")
            first = nodes <= 1 and not self._has_lost_one() and not self._is_corrupt(watermark)
            self._promised = watermark if first else None

    def disturbed(self) -> None:
        """A coordinator dies or cannot be reached: who is late to find the next one is lost, and nobody counts that."""
        self._promised, self._disturbed = None, True
        self._lateness.disturbed()

    def _look_at_lateness(self) -> None:
        """Checker (j), at a loss: what is lost now is newer than what must be committed by now."""
        permit = self._permit
        if self._disturbed or permit is None or self._world.coordinator.phase.value != "running":
            return

        def is_wanted(number: int) -> bool:
            return self._is_scheduled(number) and (permit.generation, number) not in self._missed

        if (late := self._lateness.overdue(permit, is_wanted)) is not None:
            fail("j", f"version {late} was reached by all long ago, and the watermark is {permit.watermark}")

    def stepped(self, version: Version) -> None:
        self._lateness.stepped(version)

    def no_plan(self, ranks: list[int]) -> None:
        watermark = self._world.coordinator.commits.permit.watermark
        if self._promised is not None:
            fail("d", f"{self._promised} was protected, one loss, and there is no plan for ranks {ranks}")
        for node in self._world.coordinator.members:
            for rank, version in self._sound(node):
                if rank in ranks and version == watermark and not self._world.options.replicated:
                    fail("d", f"{node} has {version} of rank {rank}, which was called lost")

    # --- what machines and processes do ------------------------------------------------------------------------------

    def obeying(self, machine: Machine, order: Order, obey: Callable[[], None]) -> None:
        """Checker (i): an order of a lower term than was promised changes nothing."""
        if order.term >= machine.promised:
            obey()
            return
        before = self._obedience(machine)
        obey()
        if self._obedience(machine) != before:
            fail("i", f"{machine.name} obeys {order}, and had promised term {machine.promised}")

    def _obedience(self, machine: Machine) -> tuple[object, ...]:
        agent = machine.agent
        return (machine.alive, agent.generation, agent.phase, agent.copies.permit)

    def met(self, generation: Generation) -> None:
        """All ranks have come to a collective: checker (h), once a newer generation runs this cannot happen."""
        if generation < self._ran:
            fail("h", f"generation {generation} still runs, and {self._ran} runs too")
        self._ran = generation

    def one_writer(self, node: str, slot: SlotRef, writer: object) -> None:
        if writer is not None:
            fail("l", f"{slot} of {node} has two writers")

    def may_overwrite(self, node: str, rank: int, version: Version, permit: Permit | None) -> None:
        if permit is None or version == permit.watermark or version.number >= permit.keep_from:
            fail("e", f"{node} overwrites {version} of rank {rank} under {permit}")
        elif version == self._watermarks.get(permit.generation):
            fail("e", f"{node} overwrites {version} of rank {rank}, the newest that was committed, under {permit}")

    def permitted(self, permit: Permit) -> None:
        """Somebody obeys it: from here on its watermark is kept until there is a newer one, whoever is in office."""
        watermark, newest = permit.watermark, self._watermarks.get(permit.generation)
        if watermark is not None and (newest is None or watermark.number > newest.number):
            self._watermarks[permit.generation] = watermark

    def floor_first(self, machine: Machine, rank: int, version: Version) -> None:
        """Rule 16: a holder that lacks the floor is sent nothing newer."""
        floor = machine.arena.permit.watermark if machine.arena.permit else None
        seats = tuple(map(self._world.machine_at, self._world.coordinator.seats)) or self.last_seats
        home = seats[self._world.layout.position_of(rank)]
        if floor is None or version.number <= floor.number or (rank, floor) not in self._sound(home.name):
            return
        if (rank, floor) not in machine.arena.sealed.values():
            fail("16", f"{machine.name} stores {version} of rank {rank} and lacks the floor {floor}")

    def ordered(self, machine: Machine, plan: Plan) -> None:
        """Rule 14: a seat has the resume version and the floor at home, or pulls them, or stands there and captures."""
        standing = {live.rank for live in machine.frozen.live if live.clean and live.version == plan.resume}
        for order in plan.orders:
            kept = order.keep and order.rank in standing
            pulled = {fetch.copy.seal.version for fetch in order.fetch}
            for version in (plan.resume, plan.permit.watermark):
                home = (order.rank, version) in machine.arena.sealed.values()
                if version and not (home or version in pulled or (kept and version == plan.resume)):
                    fail("14", f"{machine.name} is to seat rank {order.rank} without {version}")

    def placed(self, machine: Machine, plan: Plan) -> None:
        """Rule 17, from what nodes are told: never the own node, and the own rack only if the others are full."""
        layout, racks = self._world.layout, self._world.options.rack_of
        names = [holder.node for holder in plan.holders]
        if plan.orders and (machine.name in names or len(names) != layout.holders):
            fail("17", f"the copies of {machine.name} go to {names}")
        outside = [m for m in self._world.coordinator.seats if racks(m) != racks(machine.name)]
        shared = [name for name in names if racks(name) == racks(machine.name)]
        roomy = layout.positions <= 2 * len(outside) and layout.holders == 1
        if self._world.options.racks and shared and roomy:
            fail("17", f"a copy of {machine.name} goes to {shared} in its own rack, {outside} are in others")

    def stands_at(self, rank: int, version: Version, state: State) -> None:
        if state != self._world.history.state(version, rank):
            fail("b", f"rank {rank} resumes at {version} with a state that never was")
        if state.course != self._world.history.undisturbed(version.number, rank):
            fail("b", f"rank {rank} resumes at {version} having seen other data than undisturbed")

    def runs(self, process: Process) -> None:
        """Perhaps in a generation that is over, which it was cut off from hearing."""
        core = process.core
        if self._runners.setdefault((core.generation, core.rank), process.number) != process.number:
            fail("h", f"two processes run as rank {core.rank} in generation {core.generation}")
        resume, start = self._origins.get(core.generation, (core.live, process.told))  # else planned by one deposed
        if core.live is not None and core.live.number and str(core.live) != str(resume):
            fail("a", f"rank {core.rank} goes on from {core.live}, the plan said {resume}")
        if process.told is not None and process.told != start and process.told in self._starts:  # None: told nothing
            fail("recordings", f"rank {core.rank} was told of start {process.told}, the job goes on from {start}")

    def final_state(self, rank: int, version: Version | None, state: State) -> None:
        if version is None or version.number != self._world.last_step:
            fail("b", f"rank {rank} ends at {version}, not at step {self._world.last_step}")
        elif state != self._world.history.state(version, rank):
            fail("b", f"rank {rank} ends with a wrong state")
        elif state.course != self._world.history.undisturbed(version.number, rank):
            fail("b", f"rank {rank} ends having seen other data than undisturbed")
        self.finished_ranks.add(rank)

    def grew(self) -> None:
        """At the end of a job that had time enough in peace."""
        watermark = self._world.coordinator.commits.permit.watermark
        behind = self._world.last_step - (watermark.number if watermark else 0)
        if behind > self._world.allowed_lag:
            fail("g", f"the job ended at {self._world.last_step}, the watermark stayed at {watermark}")

    # --- what is really there ----------------------------------------------------------------------------------------

    def _sound(self, node: str) -> list[tuple[int, Version]]:
        """Sealed, and still as it was then."""
        machine = self._world.machine_at(node)
        sealed = machine.arena.sealed.items() if machine.alive else ()
        return [what for slot, what in sealed if slot not in machine.arena.corrupted]

    def _on_shelves(self, node: str) -> list[tuple[int, Version]]:
        """What the node would offer as a copy."""
        machine = self._world.machine_at(node)
        inventory = machine.agent.copies.inventory(())
        return [(c.seal.rank, c.seal.version) for c in (*inventory.own, *inventory.held)] if machine.alive else []

    def _all_seats_alive(self) -> bool:
        return all(self._world.machine_at(node).alive for node in self._world.coordinator.seats)

    def _has_lost_one(self) -> bool:
        """Cut off for ever, and nobody has noticed yet: what happens now is the second loss."""
        return any(self._world.machine_at(node).fallen for node in self._world.coordinator.seats)

    def _is_corrupt(self, version: Version) -> bool:
        """Some copy of it: then one loss may be one too many."""
        arenas = [self._world.machine_at(node).arena for node in self._world.coordinator.seats]
        return any(arena.sealed.get(slot, (0, None))[1] == version for arena in arenas for slot in arena.corrupted)

    def _missing(self, version: Version) -> str:
        """The first copy of a version that is not where it should be. Machines that died unnoticed are not blamed."""
        layout, seats = self._world.layout, self._world.coordinator.seats
        placement = self._world.coordinator.commits.placement
        for rank in range(layout.world_size):
            home = layout.position_of(rank)
            for position in (home, *placement.of(home)):
                machine = self._world.machine_at(seats[position])
                if machine.alive and not self._has(machine, rank, version):
                    return f"the copy of rank {rank} at {machine.name}"
        return ""

    def _has(self, machine: Machine, rank: int, version: Version) -> bool:
        """Whole, and the rank's true state. Garbage is not committed: some rank has no seal of it."""
        truth = self._world.history.state(version, rank)
        for slot, sealed in machine.arena.sealed.items():
            if sealed == (rank, version):
                content = machine.arena.contents.get(slot)
                corrupt = slot in machine.arena.corrupted
                return content is not None and (corrupt or content.unique == truth.unique)
        return False
