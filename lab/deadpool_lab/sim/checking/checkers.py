"""What must hold whatever happens: the checkers of the protocol, from what machines really hold, apart from the cores.

docs/protocol.md lists them: those with a letter, those that are a rule as it stands, and three beside the protocol,
(recordings), (rehearsals) and (drain). This file follows the coordinator's orders, losses, and what processes do;
copies are looked at in `recovery_checkers.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from deadpool.protocol.coordinator.core import Coordinator
from deadpool.protocol.identity import NO_GENERATION, Generation, Schedule, Version
from deadpool.protocol.messages import Ended, Go, Missed, Order, Permit, Plan, TakeoverReport
from deadpool_lab.sim.checking import fail
from deadpool_lab.sim.checking.corruption_checker import CorruptionChecker
from deadpool_lab.sim.checking.feature_checkers import ProtectionChecker, ShrinkChecker
from deadpool_lab.sim.checking.history import State
from deadpool_lab.sim.checking.holdings import Holdings
from deadpool_lab.sim.checking.recovery_checkers import (
    CopyCheckers,
    DrainChecker,
    LossBound,
    ProgressChecker,
    RehearsalChecker,
)
from deadpool_lab.sim.checking.step_audit_checker import StepAuditChecker

if TYPE_CHECKING:
    from deadpool_lab.sim.hosts import Host
    from deadpool_lab.sim.machine import Machine
    from deadpool_lab.sim.process import Process
    from deadpool_lab.sim.world import World


class Checkers:
    def __init__(self, world: World) -> None:
        self._world = world
        self.copies = CopyCheckers(world)
        self.drain = DrainChecker()
        self.rehearsals = RehearsalChecker(world)
        self.progress = ProgressChecker(world)
        self.protection = ProtectionChecker()
        self.shrink = ShrinkChecker(world)
        self.corruption = CorruptionChecker(world)
        self.step_audits = StepAuditChecker(world)
        self._holdings = Holdings(world)
        self._loss_bound = LossBound(world)
        self._generation: Generation | None = None
        self._resume: Version | None = None
        self._starts: list[Generation | None] = [None]  # starts from the first line that went: only these told anything
        self._origins: dict[Generation, tuple[Version | None, Generation | None]] = {}  # what it resumes, which start
        self._permit: Permit | None = None
        self._schedules: list[Schedule] = []  # of this generation, in the order in which they were announced
        self._missed: set[tuple[Generation, int]] = set()
        self._process_of: dict[tuple[Generation, int], int] = {}
        self._survivable: Version | None = None  # a loss was survivable: the next plan resumes here or newer
        self._disturbed = False  # coordinators come and go, so losses cannot be counted
        self._newest_running: Generation = NO_GENERATION  # the newest in which all ranks met
        self.last_generation: Generation = NO_GENERATION  # the last that went, or the founding one
        self.newer_seats: dict[Generation, tuple[Machine, ...]] = {}  # of plans since then
        self.finished_ranks: set[int] = set()
        self._left: set[tuple[Generation, int]] = set()

    @property
    def last_seats(self) -> tuple[Machine, ...]:
        return self.copies.last_seats

    def _seated_machines(self) -> tuple[Machine, ...]:
        return tuple(map(self._world.machine_at, self._world.coordinator.seats))

    def check_lease(self, machine: Machine) -> None:
        """A rank is about to begin there."""
        if machine.is_leased_elsewhere or not machine.is_leased:
            fail("rule 31", f"{machine.name} gives a rank to a process, and its machine does not serve this job")

    # --- the coordinator's orders, as they leave it ------------------------------------------------------------------

    def on_order_sent(self, host: Host, node: str, message: Any) -> None:
        """A coordinator that was replaced may order what it likes: that no node obeys it is checked elsewhere."""
        if isinstance(message, Plan):
            self._world.history.planned(message.generation, message.resume, self._world.durable.origin(message))
        if host.coordinator is not self._world.coordinator:
            return
        if isinstance(message, Plan):
            self.shrink.on_plan(node, message)
        match message:
            case Plan(generation=generation) if generation != self._generation:
                self._on_plan(message)
            case Permit() if self._permit is None:
                self._on_permit_adopted(message)
            case Permit() if message != self._permit:
                self._on_permit(message)
            case Go(generation=generation):
                self._on_go(generation)
            case _:
                pass

    def on_takeover(self, coordinator: Coordinator, *, running: bool) -> None:
        """The last orders of the coordinator before may have reached no node."""
        if coordinator is self._world.coordinator:
            self._permit = None
            self._disturbed = not running

    def _on_permit_adopted(self, permit: Permit) -> None:
        """Rule 18 (one coordinator per term): a successor adopts no lower permit than any seat has obeyed."""
        for node in self._world.coordinator.seats:
            obeyed = self._world.machine_at(node).arena.permit
            if obeyed is not None and obeyed.keep_from > permit.keep_from:
                fail("rule 18", f"{permit} is adopted, {node} was told {obeyed}")
        self._permit = permit
        if permit.schedule in self._schedules:
            self._schedules = self._schedules[: self._schedules.index(permit.schedule) + 1]

    def _on_plan(self, plan: Plan) -> None:
        self._generation, self._resume, self._permit = plan.generation, plan.resume, plan.permit
        self.corruption.on_plan(plan)
        self._schedules = [plan.permit.schedule]
        if plan.generation.is_founding:
            self.last_generation, self.copies.last_seats = plan.generation, self._seated_machines()
        else:
            self.newer_seats[plan.generation] = self._seated_machines()
        self._origins[plan.generation] = (plan.resume, plan.generation if plan.resume is None else self._starts[-1])
        survivable, self._survivable = self._survivable, None
        if survivable is not None and (plan.resume is None or plan.resume.number < survivable.number):
            fail("d", f"{survivable} was protected, one loss, and the plan resumes from {plan.resume}")

    def _on_permit(self, permit: Permit) -> None:
        before, self._permit = self._permit, permit
        assert before is not None
        if permit.schedule != self._schedules[-1]:
            self._check_schedule(permit.schedule, before)
        if permit.generation != before.generation:
            return
        if permit.watermark == before.watermark:
            if not self.corruption.is_unsolved:
                self._check_passed(before, permit)
            return
        watermark = permit.watermark
        self.step_audits.on_permit(watermark)
        if self.step_audits.is_over:
            return
        if watermark is None or watermark.number < before.keep_from:
            fail("f", f"{watermark} committed, {before.keep_from} and newer were kept")
        elif missing := self._holdings.first_missing_copy(watermark):
            fail("f", f"{watermark} committed without {missing}")
        elif undecodable := self._holdings.first_undecodable(watermark):
            fail("rule 27", f"{watermark} committed, and it cannot be rebuilt for {undecodable}")
        elif lost := self._holdings.first_shard_at_one_node(watermark):
            fail("rule 30", f"{watermark} committed, and {lost}")
        else:
            self.corruption.on_commit(watermark)
            self.step_audits.on_commit(watermark)

    def _check_schedule(self, schedule: Schedule, before: Permit) -> None:
        """Rule 4 (every rank captures the same versions): nothing that the permit has passed already, or that a rank
        is known to have reached, is changed."""
        known = max((step for m in self._world.coordinator.members.values() for step in m.steps.values()), default=0)
        if schedule.start <= known + 2 or schedule.start < before.keep_from:
            fail("rule 4", f"{schedule} begins too early: a rank has reached {known}, the permit {before.keep_from}")
        self._schedules.append(schedule)

    def _is_scheduled(self, number: int) -> bool:
        return [schedule for schedule in self._schedules if schedule.start <= number][-1].captures(number)

    def _check_passed(self, before: Permit, permit: Permit) -> None:
        """Rule 7 (pending versions are not passed): without a commit only versions that no rank captures, that some
        rank missed, or from which the generation began with all replicas at one home (rule 30, carried ranks), are
        passed."""
        for number in range(before.keep_from, permit.keep_from):
            if self._is_scheduled(number) and (permit.generation, number) not in self._missed:
                resumed = self._resume is not None and self._resume.number == number
                if not (resumed and self.shrink.has_shard_at_one_home):
                    fail("rule 7", f"version {number} was on its way, and the permit passed it: {permit}")

    def on_report(self, message: Any) -> None:
        """What the coordinator is told, as it arrives."""
        match message:
            case Missed(generation=generation, number=number):
                self._missed.add((generation, number))
            case Ended(generation=generation, rank=rank, code=0):
                self._on_ended(rank, generation)
            case TakeoverReport(footing=footing, missed=missed):
                self._missed |= {(footing.planned, number) for number in missed}
            case _:
                pass

    def _on_go(self, generation: Generation) -> None:
        self._disturbed = False
        self.shrink.on_go()
        self._starts.append(self._origins[generation][1])
        self.last_generation, self.copies.last_seats = generation, self._seated_machines()
        self.newer_seats.clear()
        for node in self._world.coordinator.seats:
            for rank, version in self._holdings.offered_copies(node):
                if self._resume is None or version.number > self._resume.number:
                    fail("k", f"Go of {generation} at {self._resume}: {node} still has {version} of rank {rank}")

    # --- losses ------------------------------------------------------------------------------------------------------

    def before_loss(self, *, nodes: int) -> None:
        """Called just before machines or processes die."""
        coordinator = self._world.coordinator
        self._check_loss_bound()
        self._loss_bound.on_disturbance()
        if self._survivable is not None or self._disturbed:
            self._survivable = None  # a second loss before the plan
            return
        if not coordinator.commits.protected or coordinator.phase.value != "running":
            return
        watermark = coordinator.commits.permit.watermark
        assert watermark is not None
        if self._holdings.all_seats_are_alive():
            if missing := self._holdings.first_missing_copy(watermark):
                fail("c", f"{watermark} is called protected, but {missing} is not there")
            lost_already = self._holdings.some_seat_is_lost() or self._holdings.is_damaged(watermark)
            self._survivable = watermark if nodes <= self._losses() and not lost_already else None

    def _losses(self) -> int:
        """How many nodes may be lost at once. Of bytes that ranks have in common only one other node is certain to have
        a copy, and the node of a carrier is the home of several positions."""
        coordinator = self._world.coordinator
        shared = self._world.options.replicated or not coordinator.is_full
        return min(1 if shared else len(coordinator.seats), coordinator.commits.placement.losses)

    def on_disturbance(self) -> None:
        """A coordinator dies or cannot be reached: a node that is late to find the next one is lost, and such losses
        are not counted here."""
        self._survivable, self._disturbed = None, True
        self._loss_bound.on_disturbance()

    def _check_loss_bound(self) -> None:
        """Checker (j), at a loss: what is lost now is newer than what must be committed by now."""
        permit = self._permit
        coordinator = self._world.coordinator
        if self._disturbed or permit is None or coordinator.phase.value != "running":
            return
        if coordinator.released and not all(map(coordinator.has_seat, coordinator.seats)):
            return  # nothing is committed any more

        def is_wanted(number: int) -> bool:
            return self._is_scheduled(number) and (permit.generation, number) not in self._missed

        if (late := self._loss_bound.overdue(permit, is_wanted)) is not None:
            fail("j", f"version {late} was reached by all long ago, and the watermark is {permit.watermark}")

    def on_step(self, version: Version) -> None:
        self._loss_bound.on_step(version)

    def on_no_plan(self, ranks: list[int]) -> None:
        """A copy that some node has must not be called lost. With replicas a copy alone may lack bytes."""
        watermark = self._world.coordinator.commits.permit.watermark
        if self._survivable is not None:
            fail("d", f"{self._survivable} was protected, one loss, and there is no plan for ranks {ranks}")
        for node in self._world.coordinator.members:
            for rank, version in self._holdings.intact_copies(node):
                if rank in ranks and version == watermark and not self._world.options.replicated:
                    fail("d", f"{node} has {version} of rank {rank}, which was called lost")
        if watermark is not None and self._world.may_shrink:
            for rank in ranks:
                if where := self._holdings.where_in_parts(rank, watermark, list(self._world.coordinator.members)):
                    fail("d", f"{watermark} of rank {rank}, which was called lost, is there in parts: {where}")
        if watermark is None or self._world.options.replicated or not self._world.coordinator.seats:
            return
        for rank in ranks:
            if self._holdings.can_rebuild(rank, watermark):
                fail("d", f"{watermark} of rank {rank} can be rebuilt, and was called lost")

    # --- what machines and processes do ------------------------------------------------------------------------------

    def check_obedience(self, machine: Machine, order: Order, obey: Callable[[], None]) -> None:
        """Checker (i): an order of a lower term than was promised changes nothing."""
        if order.term >= machine.promised:
            obey()
            return
        before = self._state_of(machine)
        obey()
        if self._state_of(machine) != before:
            fail("i", f"{machine.name} obeys {order}, and had promised term {machine.promised}")

    def _state_of(self, machine: Machine) -> tuple[object, ...]:
        agent = machine.agent
        return (machine.alive, agent.generation, agent.phase, agent.copies.permit)

    def on_collective(self, generation: Generation) -> None:
        """Checker (h): all ranks have come to a collective, which cannot happen once a newer generation runs."""
        if generation < self._newest_running:
            fail("h", f"generation {generation} still runs, and {self._newest_running} runs too")
        self._newest_running = generation

    def stands_at(self, rank: int, version: Version, state: State) -> None:
        if state != self._world.history.state(version, rank):
            fail("b", f"rank {rank} resumes at {version} with a state that never was")
        if state.course != self._world.history.undisturbed(version.number, rank):
            fail("b", f"rank {rank} resumes at {version} having seen other data than undisturbed")

    def runs(self, process: Process) -> None:
        """The process may run in a generation that is over, if it was cut off from hearing so."""
        core, told = process.core, process.recordings.told
        for rank in process.states():
            if self._process_of.setdefault((core.generation, rank), process.number) != process.number:
                fail("h", f"two processes run as rank {rank} in generation {core.generation}")
        resume, start = self._origins.get(core.generation, (core.live, told))  # else planned by one deposed
        if core.live is not None and core.live.number and str(core.live) != str(resume):
            fail("a", f"rank {core.rank} goes on from {core.live}, the plan said {resume}")
        if told is not None and told != start and told in self._starts:  # None: told nothing
            fail("recordings", f"rank {core.rank} was told of start {told}, the job goes on from {start}")

    def final_state(self, rank: int, version: Version | None, state: State) -> None:
        if version is None or version.number != self._world.last_step:
            fail("b", f"rank {rank} ends at {version}, not at step {self._world.last_step}")
        elif state != self._world.history.state(version, rank):
            fail("b", f"rank {rank} ends with a wrong state")
        elif state.course != self._world.history.undisturbed(version.number, rank):
            fail("b", f"rank {rank} ends having seen other data than undisturbed")
        self.finished_ranks.add(rank)

    def on_left(self, rank: int, generation: Generation) -> None:
        """Takes note of a rank whose process was released in that generation, and ends."""
        self._left.add((generation, rank))

    def _on_ended(self, rank: int, generation: Generation) -> None:
        """Rule 33 (a fence takes the release back): what ended under the release of another generation may have to be
        done again in this one."""
        if (generation, rank) not in self._left:
            fail("rule 33", f"rank {rank} counts as ended in {generation}, in which it was not released")

    def check_watermark_grew(self) -> None:
        """Checks the end of a job that had time enough without faults."""
        watermark = self._world.coordinator.commits.permit.watermark
        behind = self._world.last_step - (watermark.number if watermark else 0)
        if behind > self._world.allowed_lag:
            fail("g", f"the job ended at {self._world.last_step}, the watermark stayed at {watermark}")
