"""Mutations of the rules of copies, commits, captures and plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from deadpool.protocol.agent.copies import slots
from deadpool.protocol.agent.copies.copies import Copies
from deadpool.protocol.agent.trainers.trainers import NodeTrainers, Trainer
from deadpool.protocol.agent.trainers.unwinding import Unwinding
from deadpool.protocol.coordinator.commits import ledger
from deadpool.protocol.coordinator.commits.commits import Commits
from deadpool.protocol.coordinator.membership.hang import HangMonitor
from deadpool.protocol.coordinator.recovery import global_plan, planner
from deadpool.protocol.coordinator.recovery.inventory_index import InventoryIndex, NodeView, source_at
from deadpool.protocol.coordinator.recovery.placement import place
from deadpool.protocol.identity import NO_GENERATION, Generation, Schedule, Version
from deadpool.protocol.inputs import StreamsCut
from deadpool.protocol.messages import Fetch, Missed, Permit, Rehearse
from deadpool.protocol.permits import CaptureSchedule
from deadpool.protocol.trainer_core import TrainerCore
from deadpool_lab.sim.mutations.mutation import Mutation, Patch
from deadpool_lab.sim.process.seating import Seating
from deadpool_lab.sim.streams import CopyStreams


def overwrite_the_watermark(patch: Patch) -> None:
    _set_may_overwrite(patch, lambda version, permit: version.number < permit.keep_from)


def keep_all_above_the_watermark(patch: Patch) -> None:
    def rule(version: Version, permit: Permit) -> bool:
        return permit.watermark is not None and version.number < permit.watermark.number

    _set_may_overwrite(patch, rule)


def _set_may_overwrite(patch: Patch, rule: Callable[[Version, Permit], bool]) -> None:
    for user in (slots, ledger):
        patch.set(user, "may_overwrite", rule)


def permit_passes_what_is_pending(patch: Patch) -> None:
    def on_missed(self: Commits, rank: int, number: int, reason: str) -> None:
        self._set_permit(self.permit.watermark, max(self.permit.keep_from, number + 1))

    patch.set(Commits, "on_missed", on_missed)


def drop_nothing_above_resume(patch: Patch) -> None:
    patch.set(slots.RankSlots, "drop_above", lambda self, resume: None)


def identity_by_number(patch: Patch) -> None:
    patch.set(Version, "__eq__", lambda self, other: isinstance(other, Version) and self.number == other.number)
    patch.set(Version, "__hash__", lambda self: hash(self.number))


def streams_not_cut(patch: Patch) -> None:
    def cut(self: CopyStreams, machine: Any, generation: Any) -> None:
        machine.streams_cut = generation
        machine.feed(StreamsCut(generation=generation))

    patch.set(CopyStreams, "cut", cut)


def watermark_kept_over_generations(patch: Patch) -> None:
    real = Commits.adopt

    def adopt(self: Commits, *args: Any) -> None:
        before = self.permit
        real(self, *args)
        if before.keep_from > self.permit.keep_from:
            self.permit = before

    patch.set(Commits, "adopt", adopt)


def newest_before_floor(patch: Patch) -> None:
    real = planner._PlanBuilder._pushes
    patch.set(planner._PlanBuilder, "_pushes", lambda self, rank: tuple(reversed(real(self, rank))))


def newcomer_without_floor(patch: Patch) -> None:
    real = planner._PlanBuilder._order

    def order(self: Any, node: str, rank: int) -> Any:
        full = real(self, node, rank)
        return replace(full, fetch=tuple(f for f in full.fetch if f.copy.seal.version == self.resume))

    patch.set(planner._PlanBuilder, "_order", order)


def seal_without_the_flag(patch: Patch) -> None:
    patch.set(TrainerCore, "is_aborted", property(lambda self: False))
    patch.set(TrainerCore, "end_step", _end_step_blindly)


def _end_step_blindly(self: TrainerCore) -> bool:
    if self.live is None:
        return False
    self._reach(Version(self.generation, self.live.number + 1))
    return True


def inventory_not_frozen(patch: Patch) -> None:
    real = Unwinding.fence

    def fence(self: Unwinding, order: Any, now: float) -> None:
        real(self, order, now)
        self._streams_cut = order.generation
        self.acknowledge_if_frozen()

    patch.set(Unwinding, "fence", fence)
    patch.set(NodeTrainers, "at_rest", lambda self: True)
    patch.set(Copies, "is_quiet", lambda self: True)


def replica_as_evidence(patch: Patch) -> None:
    """Where there is no seal of a rank, the seal of a replica is taken for it."""
    real = InventoryIndex.fetch

    def fetch(self: InventoryIndex, rank: int, version: Version) -> Fetch | None:
        found = real(self, rank, version)
        book = self.of(version)
        seated = [(owner, home) for owner in book.owners() if (home := book.home_of(owner)) is not None]
        twin = next((each for each in seated if each[1][1].shared.peers), None)
        if found is not None or twin is None:
            return found
        peer, (node, batch) = twin
        copy = batch.copy(peer)
        base = (source_at(node, peer, "record", "unique"),)
        replica = (source_at(node, peer, "replica"),)
        return Fetch(copy=replace(copy, seal=replace(copy.seal, rank=rank)), groups=(base, replica))

    patch.set(InventoryIndex, "fetch", fetch)


def damaged_copy_loaded(patch: Patch) -> None:
    patch.set(Seating, "_found_damaged", Seating._stand_at)


def racks_ignored(patch: Patch) -> None:
    patch.set(global_plan, "place", lambda racks, scheme, *_: place([None] * len(racks), scheme))


def resume_version_not_counted_at_go(patch: Patch) -> None:
    patch.set(Commits, "_settle_resume", Commits._note_protection)


def unclean_memory_kept(patch: Patch) -> None:
    patch.set(Trainer, "stands_at", lambda self, version: True)


def rehearsals_of_an_earlier_start_kept(patch: Patch) -> None:
    patch.set(NodeTrainers, "replace_rehearsals", lambda self, but=(): None)


def process_of_another_rank_seated(patch: Patch) -> None:
    def take_for(self: NodeTrainers, rank: int) -> Trainer:
        return min(self.free(), key=lambda trainer: trainer.rank != rank) if self.free() else self.start()

    patch.set(NodeTrainers, "take_for", take_for)


def rehearsal_of_another_rank_goes_on(patch: Patch) -> None:
    patch.set(NodeTrainers, "replace", lambda self, trainer, reason, rank: self.tell(trainer, _rehearse(trainer, rank)))


def _rehearse(trainer: Trainer, rank: int | None) -> Rehearse:
    return Rehearse(generation=NO_GENERATION, trainer=trainer.name, rank=rank or 0)


def hangs_not_detected(patch: Patch) -> None:
    patch.set(HangMonitor, "detect", lambda self, now: None)


def schedule_changes_at_once(patch: Patch) -> None:
    def reschedule(self: TrainerCore, generation: Generation, schedule: Schedule) -> list[Missed]:
        if generation == self.generation:
            self.schedule = CaptureSchedule(Schedule(every=schedule.every, left_out_of=schedule.left_out_of))
        return []

    patch.set(TrainerCore, "reschedule", reschedule)


def late_news_of_a_schedule_not_reported(patch: Patch) -> None:
    patch.set(CaptureSchedule, "overlooked", lambda self, schedule, up_to: [])


def schedule_begins_too_early(patch: Patch) -> None:
    def reschedule(self: Commits, schedule: Schedule) -> None:
        real(self, replace(schedule, start=max(self.timetable.newest.start, schedule.start - 6)))

    real = Commits.reschedule
    patch.set(Commits, "reschedule", reschedule)


def changes_left_out_of_a_plan(patch: Patch) -> None:
    def stays(self: planner._PlanBuilder, node: NodeView, undisturbed: dict[str, int]) -> bool:
        before = self.view.before
        return before is not None and node.node in before.seats and node.planned_in == before.generation

    patch.set(planner._PlanBuilder, "_stays", stays)


MUTATIONS = [
    Mutation(1, "overwrite the watermark", overwrite_the_watermark, rule=5),
    Mutation(2, "no keep_from, watermark alone", keep_all_above_the_watermark, rule=5),
    Mutation(3, "permit passes what is pending", permit_passes_what_is_pending, rule=7),
    Mutation(4, "nothing dropped above resume", drop_nothing_above_resume, rule=14),
    Mutation(24, "schedule changes at once", schedule_changes_at_once, rule=4, profile="intervals"),
    Mutation(
        25, "late news of a schedule not reported", late_news_of_a_schedule_not_reported, rule=4, profile="intervals"
    ),
    Mutation(26, "schedule begins where ranks are", schedule_begins_too_early, rule=4, profile="intervals"),
    Mutation(5, "identity by number", identity_by_number, rule=1, profile="births"),
    Mutation(6, "streams not cut", streams_not_cut, rule=12),
    Mutation(7, "watermark kept over generations", watermark_kept_over_generations, rule=5),
    Mutation(8, "newest before floor", newest_before_floor, rule=16),
    Mutation(9, "newcomer without floor", newcomer_without_floor, rule=14),
    Mutation(10, "seal without the flag", seal_without_the_flag, rule=8, profile="tight"),
    Mutation(11, "replica as evidence", replica_as_evidence, rule=13, profile="replicas"),
    Mutation(14, "inventory not frozen", inventory_not_frozen, rule=12),
    Mutation(28, "racks ignored", racks_ignored, rule=17),
    Mutation(27, "changes left out of a plan", changes_left_out_of_a_plan, rule=14),
    Mutation(29, "resume version not counted at Go", resume_version_not_counted_at_go, rule=16),
    Mutation(30, "unclean memory kept", unclean_memory_kept, rule=9, profile="tight"),
    Mutation(
        35, "rehearsals of an earlier start kept", rehearsals_of_an_earlier_start_kept, rule=23, profile="returns"
    ),
    Mutation(36, "process of another rank seated", process_of_another_rank_seated, rule=23, profile="long_loads"),
    Mutation(37, "rehearsal of another rank goes on", rehearsal_of_another_rank_goes_on, rule=23),
    Mutation(31, "hangs not detected", hangs_not_detected, rule=20),
    Mutation(39, "damaged copy loaded", damaged_copy_loaded, rule=24, profile="damage"),
]
