"""The commits: which versions are sealed at home and stored at all holders, and what may be overwritten since.

News of copies goes into the ledger of this generation. A version that is complete there is committed: it becomes the
watermark of a new permit. Where copies cannot be counted on at all, the reason is returned, and the job ends with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from deadpool.protocol.coordinator.commits.ledger import Ledger
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.outbox import Outbox
from deadpool.protocol.coordinator.recovery.global_plan import GlobalPlan
from deadpool.protocol.coordinator.recovery.placement import NO_PLACEMENT, Placement
from deadpool.protocol.identity import NO_GENERATION, Layout, Schedule, Version
from deadpool.protocol.messages import Copy, Inventory, Permit
from deadpool.protocol.permits import CaptureSchedule
from deadpool.protocol.schemes import RankGroup

TRIAL_COMMITS = 10
"""The number of versions that have to be committed before a claim of replication counts as having been true."""


def wrong_claim(ranks: Iterable[int], version: Version) -> str:
    names = ", ".join(map(str, ranks))
    return (
        f"ranks {names}: state that counts as replicated is on no other node at version {version.number}; "
        "likely: a forward pass that writes to parameters, such as nn.Embedding(max_norm=...), gradients that are not "
        "reduced, or a wrong claim; correct protect(replicated=...), or give None there for what is to be sent"
    )


class Commits:
    """Methods that return a string return why the job must end, or None."""

    def __init__(self, layout: Layout, schedule: Schedule, out: Outbox) -> None:
        self.layout, self.timetable, self._out = layout, CaptureSchedule(schedule), out
        self.ledger = Ledger(layout, (), NO_PLACEMENT)
        self._closed: Ledger | None = None  # of the generation before: freed after the plan, because that takes time
        self.permit = Permit(generation=NO_GENERATION, watermark=None, keep_from=0, schedule=schedule)
        self.protected = False
        self.committed = False  # some version was complete once: the job has something to lose
        self.count = 0
        self._resume: Version | None = None
        self._running = self._over = False
        self._uncounted: list[tuple[str, tuple[int, ...], Inventory]] = []  # node, its ranks, what it froze before
        self._awaited: int | None = None  # a version that every rank captures, whatever the schedule says
        self._unmatched: tuple[int, ...] = ()  # ranks whose replicas differed, as last reported
        self.is_withheld: Callable[[Version], bool] = lambda version: False  # as optional features say
        self._withheld: Version | None = None  # in this generation: nothing more is committed in it
        self._former_holders: tuple[str, ...] = ()  # nodes that hold copies and no rank: a permit frees them there too

    @property
    def resume(self) -> Version | None:
        """The version that this generation began at."""
        return self._resume

    @property
    def placement(self) -> Placement:
        return self.ledger.placement

    def check(self) -> None:
        watermark = self.permit.watermark
        assert watermark is None or watermark.number < self.permit.keep_from, self.permit

    # --- fence, plan, go ----------------------------------------------------------------------------------------------

    def on_fence(self) -> None:
        self._running, self._awaited, self._withheld = False, None, None
        self._uncounted.clear()

    def adopt(self, plan: GlobalPlan, members: Iterable[Member]) -> None:
        same_rack_before = self.placement.same_rack
        self.permit, self._resume, self.protected = plan.permit, plan.resume, False
        self.timetable = CaptureSchedule(plan.permit.schedule)
        self._closed = self.ledger
        self.ledger = Ledger(self.layout, plan.seats, plan.placement)
        members = list(members)
        self._former_holders = tuple(m.node for m in members if m.position is None and m.has_copies)
        if plan.resume is not None:
            self._uncounted = [(m.node, m.ranks(self.layout), m.inventory) for m in members if m.inventory is not None]
        self._note_same_rack(same_rack_before)

    def _count_in(self) -> None:
        """What inventories have of the versions that are kept. Not before it is needed: the plan goes out first."""
        for node, ranks, inventory in self._uncounted:
            self._count(node, ranks, inventory)
        self._uncounted.clear()

    def _count(self, node: str, seats: tuple[int, ...], inventory: Inventory) -> None:
        kept = (self._resume, self.permit.watermark)
        for batch in (batch for batch in inventory.own.batches if batch.version in kept):
            self.ledger.add_sealed_batch(batch, seats)
        for batch in (batch for batch in inventory.held.batches if batch.version in kept):
            self.ledger.add_stored_batch(batch, node)
        for joint in (joint for joint in inventory.joint if joint.version in kept):
            self.ledger.add_joint(joint, node)

    def _note_same_rack(self, before: tuple[int, ...]) -> None:
        """Copies that racks cannot protect are reported when they become so, and not at every plan."""
        positions = self.placement.same_rack
        if positions and positions != before:
            nodes = [self.ledger.nodes[position] for position in positions]
            self._out.emit("copies_in_own_rack", positions=list(positions), nodes=nodes)

    def on_go(self) -> str | None:
        self._count_in()
        self._closed = None
        self._running = True
        return self._settle_resume()

    def _settle_resume(self) -> str | None:
        """The resume version may have all its copies, or be one that no rank captures: no later news would say so."""
        untenable = self._advance(self._resume) if self._resume is not None else None
        if untenable is None:
            self._renew_permit()
        return untenable

    # --- taking over --------------------------------------------------------------------------------------------------

    def take_over(
        self, permit: Permit, resume: Version | None, schedules: tuple[Schedule, ...], ledger: Ledger
    ) -> None:
        """What was committed under earlier coordinators. Nothing follows from it yet.

        Whether the watermark is only the version at which a young job resumed is not known any more: it counts as
        committed.
        """
        self.permit, self._resume = permit, resume
        self.timetable = CaptureSchedule(*schedules)
        self.committed, self.count = permit.watermark is not None, TRIAL_COMMITS
        self.ledger = ledger
        self.ledger.drop_overwritable(permit)

    def continue_running(self) -> str | None:
        """Rule 18, one coordinator per term: the highest permit comes first, then the watermark, and only then may
        versions be passed over."""
        self._running = True
        self._out.send_each(tuple(dict.fromkeys(self.ledger.nodes)), self.permit)
        untenable = self._advance_all()
        if untenable is None:
            self._renew_permit()
        return untenable

    def end(self) -> None:
        """Rule 33 (a fence takes the release back): a node is lost and no plan follows, so that copies which are gone
        still count. Nothing more is committed: a successor may have to go on from what there is."""
        self._over, self.protected = True, False

    def forget(self, node: str) -> None:
        self._former_holders = tuple(former for former in self._former_holders if former != node)

    # --- news of copies -----------------------------------------------------------------------------------------------

    def on_sealed(self, copy: Copy) -> str | None:
        self.ledger.add_sealed(copy)
        return self._advance(copy.seal.version)

    def on_stored(self, rank: int, node: str, version: Version) -> str | None:
        self.ledger.add_stored(rank, node, version)
        return self._advance(version)

    def on_stored_together(self, ranks: Iterable[int], node: str, version: Version) -> str | None:
        self.ledger.add_stored_together(ranks, node, version)
        return self._advance(version)

    def lose_copy(self, rank: int, node: str, version: Version) -> None:
        """Removes a damaged copy that was counted."""
        self._count_in()
        self.ledger.remove(rank, node, version)

    def lose_joint(self, group: RankGroup, keeper: int, node: str, version: Version) -> bool:
        """The joint copy that the node of this rank keeps is lost. False: ranks are in other groups by now."""
        self._count_in()
        if not self.ledger.has_group(group, keeper):
            return False
        self.ledger.remove_joint(keeper, node, version)
        return True

    def on_missed(self, rank: int, number: int, reason: str) -> None:
        self.ledger.missed.add(number)
        self._out.emit("capture_missed", rank=rank, step=number, reason=reason)
        self._renew_permit()

    def _advance(self, version: Version) -> str | None:
        """Rule 6, commit. Never a version that the permit has passed: some rank may have overwritten it."""
        if self._over or self._withheld is not None:
            return None
        if version.number >= self.permit.keep_from and self.ledger.complete(version):
            if self.is_withheld(version):
                self._withheld = version
            elif unmatched := self.ledger.unmatched(version):
                if untenable := self._on_unmatched_replicas(version, unmatched):
                    return untenable
            else:
                self._commit(version)
        self._note_protection()
        return None

    def stop_withholding(self) -> str | None:
        """Decides on the version that was withheld, and on newer ones, as if no feature had anything to say."""
        self._withheld = None
        return self._advance_all()

    def _advance_all(self) -> str | None:
        for version in sorted(self.ledger.places, key=lambda version: version.number):
            if untenable := self._advance(version):
                return untenable
        return None

    def _commit(self, version: Version) -> None:
        self.committed = True
        self.count += 1
        self._set_permit(version, version.number + 1)

    def _on_unmatched_replicas(self, version: Version, ranks: tuple[int, ...]) -> str | None:
        """Bytes that were not sent are on no other node, so the version does not count. In a young job the user's claim
        of replication is wrong, and it is better to end now than at a loss. Later the replicas have come apart, and
        older versions stay committed. Where a node is the home of all replicas by now, that is excused for the version
        which the plan resumed from: its bytes were perhaps not sent, those of every later one are (rule 30, carried
        ranks)."""
        at_one_home = self.ledger.has_shared_homes and version == self._resume
        if ranks != self._unmatched:
            self._unmatched = ranks
            step, named = version.number, list(ranks)
            self._out.emit("replicas_at_one_node" if at_one_home else "replicas_differ", step=step, ranks=named)
        if self.is_young and not at_one_home:
            return wrong_claim(ranks, version)
        self.ledger.missed.add(version.number)
        self._renew_permit()
        return None

    @property
    def is_young(self) -> bool:
        return self.count < TRIAL_COMMITS

    def _note_protection(self) -> None:
        watermark = self.permit.watermark
        if self.protected or watermark is None or not self._running:
            return
        if self.ledger.complete(watermark) and not self._is_at_one_home(watermark):
            self.protected = self.committed = True
            self._out.emit("protected", step=watermark.number)

    def _is_at_one_home(self, version: Version) -> bool:
        """Rule 30, carried ranks: replicas that were on several nodes lie on one by now, and no holder has them."""
        return self.ledger.has_shared_homes and bool(self.ledger.unmatched(version))

    # --- the schedule -------------------------------------------------------------------------------------------------

    @property
    def schedule(self) -> Schedule:
        """Returns the schedule for a plan: every rank begins with it at the resume version, wherever it was to begin
        before.
        """
        newest = self.timetable.newest
        return Schedule(every=newest.every, left_out_of=newest.left_out_of)

    def reschedule(self, schedule: Schedule) -> None:
        """Rule 4, every rank captures the same versions: the schedule begins at one that no rank has reached yet. The
        permit carries the news."""
        self.timetable.add(schedule, settled=self.permit.keep_from)
        self._renew_permit()

    def expect(self, number: int | None) -> None:
        """Every rank was asked to capture this version, besides those that are scheduled. None: no longer."""
        assert number is None or number >= self.permit.keep_from, (number, self.permit)
        self._awaited = number
        self._renew_permit()

    # --- the permit ---------------------------------------------------------------------------------------------------

    def _renew_permit(self) -> None:
        """Renews the permit, which may then pass more versions than it did."""
        self._set_permit(self.permit.watermark, self.permit.keep_from)

    def _set_permit(self, watermark: Version | None, keep_from: int) -> None:
        """Rule 7, pending versions are not passed: the permit passes only versions that no rank will capture."""
        while self._is_never_captured(keep_from):
            keep_from += 1
        generation = self._out.generation
        permit = Permit(generation=generation, watermark=watermark, keep_from=keep_from, schedule=self.timetable.newest)
        if permit == self.permit:
            return
        self.permit = permit
        self.ledger.drop_overwritable(permit)
        self._out.send_each(tuple(dict.fromkeys((*self.ledger.nodes, *self._former_holders))), permit)

    def _is_never_captured(self, number: int) -> bool:
        if number == self._awaited:
            return False  # a handover needs it at home, whether or not some holder could not store it
        resumed = self._resume is not None and self._resume.number == number
        return number in self.ledger.missed or not (resumed or self.timetable.captures(number))
