"""The commits: which versions all places have, and what may be overwritten since.

News of copies goes into the ledger of this generation. A version that is complete there is committed: it becomes the
watermark of a new permit. What cannot be counted on, the coordinator is told as the reason to end the job.
"""

from __future__ import annotations

from collections.abc import Iterable

from deadpool.protocol.capture_schedule import CaptureSchedule
from deadpool.protocol.coordinator.ledger import Ledger
from deadpool.protocol.coordinator.members import Member
from deadpool.protocol.coordinator.outbox import Outbox
from deadpool.protocol.coordinator.placement import NOWHERE, Placement
from deadpool.protocol.coordinator.planner import Blueprint
from deadpool.protocol.coordinator.recovered_view import RecoveredView
from deadpool.protocol.identity import NO_GENERATION, Version
from deadpool.protocol.inventory_batches import batches_of
from deadpool.protocol.messages import Copy, Inventory, Permit
from deadpool.protocol.topology import Layout, Schedule

TRIAL_COMMITS = 10
"""Versions that have to be complete before a claim of replication counts as having been true."""


class Commits:
    """Methods that return a string return why the job must end, or None."""

    def __init__(self, layout: Layout, schedule: Schedule, out: Outbox) -> None:
        self.layout, self.timetable, self._out = layout, CaptureSchedule(schedule), out
        self.ledger = Ledger(layout, (), NOWHERE)
        self._closed: Ledger | None = None  # of the generation before: to throw it away takes time, and a plan has none
        self.permit = Permit(generation=NO_GENERATION, watermark=None, keep_from=0, schedule=schedule)
        self.protected = False
        self.committed = False  # some version was complete once: the job has something to lose
        self.count = 0
        self._resume: Version | None = None
        self._running = False
        self._uncounted: list[tuple[str, int | None, Inventory]] = []  # node, position: since the plan
        self._awaited: int | None = None  # a version that every rank captures, whatever the schedule says
        self._unmatched: tuple[int, ...] = ()  # ranks whose replicas were not, as last said
        self._former: tuple[str, ...] = ()  # nodes that hold copies and no rank: a permit frees them there too

    @property
    def resume(self) -> Version | None:
        """Where this generation began."""
        return self._resume

    @property
    def placement(self) -> Placement:
        return self.ledger.placement

    def check(self) -> None:
        watermark = self.permit.watermark
        assert watermark is None or watermark.number < self.permit.keep_from, self.permit

    # --- fence, plan, go ---------------------------------------------------------------------------------------------

    def fence(self) -> None:
        self._running, self._awaited = False, None
        self._uncounted.clear()

    def adopt(self, blueprint: Blueprint, members: Iterable[Member]) -> None:
        same_rack_before = self.placement.same_rack
        self.permit, self._resume, self.protected = blueprint.permit, blueprint.resume, False
        self.timetable = CaptureSchedule(blueprint.permit.schedule)
        self._closed = self.ledger
        self.ledger = Ledger(self.layout, blueprint.seats, blueprint.placement)
        members = list(members)
        self._former = tuple(m.node for m in members if m.position is None and m.has_copies)
        if blueprint.resume is not None:
            self._uncounted = [(m.node, m.position, m.inventory) for m in members if m.inventory is not None]
        self._note_same_rack(same_rack_before)

    def _count_in(self) -> None:
        """What inventories have of the versions that are kept. Only when it is asked for: the plan goes out first."""
        for node, position, inventory in self._uncounted:
            seats = self.layout.ranks_at(position) if position is not None else range(0)
            self._count(node, seats, inventory)
        self._uncounted.clear()

    def _count(self, node: str, seats: range, inventory: Inventory) -> None:
        kept = (self._resume, self.permit.watermark)
        for lot in (lot for lot in batches_of(inventory.own) if lot.version in kept):
            self.ledger.add_sealed_lot(lot, seats)
        for lot in (lot for lot in batches_of(inventory.held) if lot.version in kept):
            self.ledger.add_stored_lot(lot, node)

    def _note_same_rack(self, before: tuple[int, ...]) -> None:
        """What racks cannot protect is said when it becomes so, not at every plan."""
        positions = self.placement.same_rack
        if positions and positions != before:
            nodes = [self.ledger.nodes[position] for position in positions]
            self._out.emit("same_rack", positions=list(positions), nodes=nodes)

    def go(self) -> str | None:
        self._count_in()
        self._closed = None
        self._running = True
        return self._settle_resume()

    def _settle_resume(self) -> str | None:
        """The resume version may have all its copies, or be one that nobody captures: no news would ever say so."""
        untenable = self._advance(self._resume) if self._resume is not None else None
        if untenable is None:
            self._renew_permit()
        return untenable

    # --- taking over -------------------------------------------------------------------------------------------------

    def take_over(self, recovered_view: RecoveredView) -> None:
        """What was committed under others. Nothing is decided by it yet.

        Whether the watermark is only where a young job resumed is not known any more: it counts as committed.
        """
        if recovered_view.permit is None:
            return
        self.permit, self._resume = recovered_view.permit, recovered_view.resume
        self.timetable = CaptureSchedule(*recovered_view.schedules)
        self.committed, self.count = recovered_view.permit.watermark is not None, TRIAL_COMMITS
        if not recovered_view.is_running:
            self.ledger = Ledger(self.layout, (), recovered_view.placement)
            return
        self.ledger = Ledger(
            self.layout, tuple(node for node in recovered_view.seats if node), recovered_view.placement
        )
        self.ledger.missed = recovered_view.missed
        for node, copy in recovered_view.own:
            if recovered_view.seats[self.layout.position_of(copy.seal.rank)] == node:
                self.ledger.add_sealed(copy)
        for node, copy in recovered_view.held:
            self.ledger.add_stored(copy.seal.rank, node, copy.seal.version)
        self.ledger.obey(self.permit)

    def take_up(self) -> str | None:
        """Rule 18: the highest permit, then the watermark, and only then may versions be passed over."""
        self._running = True
        self._out.send_each(self.ledger.nodes, self.permit)
        for version in sorted(self.ledger.places, key=lambda version: version.number):
            if untenable := self._advance(version):
                return untenable
        self._renew_permit()
        return None

    def forget(self, node: str) -> None:
        self._former = tuple(former for former in self._former if former != node)

    # --- news of copies ----------------------------------------------------------------------------------------------

    def sealed(self, copy: Copy) -> str | None:
        self.ledger.add_sealed(copy)
        return self._advance(copy.seal.version)

    def stored(self, rank: int, node: str, version: Version) -> str | None:
        self.ledger.add_stored(rank, node, version)
        return self._advance(version)

    def lost_copy(self, rank: int, node: str, version: Version) -> None:
        """It was counted, and is not what it was."""
        self._count_in()
        self.ledger.remove(rank, node, version)

    def missed(self, rank: int, number: int, reason: str) -> None:
        self.ledger.missed.add(number)
        self._out.emit("missed", rank=rank, step=number, reason=reason)
        self._renew_permit()

    def _advance(self, version: Version) -> str | None:
        """Rule 6: commit. Never a version that the permit has passed: some rank may have overwritten it."""
        if version.number >= self.permit.keep_from and self.ledger.complete(version):
            if alone := self.ledger.unmatched(version):
                if untenable := self._replicas_differ(version, alone):
                    return untenable
            else:
                self._commit(version)
        self._note_protection()
        return None

    def _commit(self, version: Version) -> None:
        self.committed = True
        self.count += 1
        self._set_permit(version, version.number + 1)

    def _replicas_differ(self, version: Version, ranks: tuple[int, ...]) -> str | None:
        """What was not sent is nowhere else, so the version does not count. From the beginning that is a wrong claim,
        and better heard of now than at a loss; later it is a state that has come apart, and older versions stay."""
        if ranks != self._unmatched:
            self._unmatched = ranks
            self._out.emit("replicas_differ", step=version.number, ranks=list(ranks))
        if self.count < TRIAL_COMMITS:
            names = ", ".join(map(str, ranks))
            return (
                f"ranks {names}: state that counts as replicated is on no other node at version {version.number}; "
                "correct protect(replicated=...), or give None there for what is to be sent"
            )
        self.ledger.missed.add(version.number)
        self._renew_permit()
        return None

    def _note_protection(self) -> None:
        watermark = self.permit.watermark
        if self.protected or watermark is None or not self._running:
            return
        if self.ledger.complete(watermark):
            self.protected = self.committed = True
            self._out.emit("protected", step=watermark.number)

    # --- the schedule ------------------------------------------------------------------------------------------------

    @property
    def schedule(self) -> Schedule:
        """For a plan: everybody begins with it at the resume version, whichever versions it was to begin at."""
        return Schedule(every=self.timetable.newest.every)

    def reschedule(self, schedule: Schedule) -> None:
        """Rule 4: from a version on that nobody has reached yet. The news travels with a permit."""
        self.timetable.add(schedule, settled=self.permit.keep_from)
        self._renew_permit()

    def expect(self, number: int | None) -> None:
        """Beside what is scheduled: every rank was asked to capture this version. None: nobody is asked any more."""
        assert number is None or number >= self.permit.keep_from, (number, self.permit)
        self._awaited = number
        self._renew_permit()

    # --- the permit --------------------------------------------------------------------------------------------------

    def _renew_permit(self) -> None:
        """It may pass more than it did."""
        self._set_permit(self.permit.watermark, self.permit.keep_from)

    def _set_permit(self, watermark: Version | None, keep_from: int) -> None:
        """Rule 7: the permit passes versions that nobody will capture, never one that is still on its way."""
        while self._is_dead(keep_from):
            keep_from += 1
        generation = self._out.generation
        permit = Permit(generation=generation, watermark=watermark, keep_from=keep_from, schedule=self.timetable.newest)
        if permit == self.permit:
            return
        self.permit = permit
        self.ledger.obey(permit)
        self._out.send_each((*self.ledger.nodes, *self._former), permit)

    def _is_dead(self, number: int) -> bool:
        resumed = self._resume is not None and self._resume.number == number
        wanted = resumed or number == self._awaited or self.timetable.captures(number)
        return number in self.ledger.missed or not wanted
