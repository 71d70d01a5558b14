"""Each broken rule is noticed within so many seeds: the checkers are worth something only if they can fail.

Numbers are those of protocol.md's list of mutations; those without one undo a fix that a seed or a reading asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import succession_mutations

from deadpool.protocol import copies, planner, storehouse
from deadpool.protocol.agent import Agent
from deadpool.protocol.commits import Commits
from deadpool.protocol.coordinator import Coordinator
from deadpool.protocol.crew import Crew, Trainer
from deadpool.protocol.effects import StreamsCut
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import Missed, Permit
from deadpool.protocol.timetable import Timetable
from deadpool.protocol.topology import Schedule
from deadpool.protocol.trainer import TrainerCore
from deadpool.sim.options import draw
from deadpool.sim.process import Process
from deadpool.sim.run import run_seed
from deadpool.sim.streams import Streams

Patch = pytest.MonkeyPatch
SEEDS = 1000  # the rarest of those that are run is noticed once in about 400


def overwrite_the_watermark(patch: Patch) -> None:
    _set_may_overwrite(patch, lambda version, permit: version.number < permit.keep_from)


def keep_all_above_the_watermark(patch: Patch) -> None:
    def rule(version: Version, permit: Permit) -> bool:
        return permit.watermark is not None and version.number < permit.watermark.number

    _set_may_overwrite(patch, rule)


def _set_may_overwrite(patch: Patch, rule: Callable[[Version, Permit], bool]) -> None:
    patch.setattr(copies, "may_overwrite", rule)
    patch.setattr(storehouse, "may_overwrite", rule)


def permit_passes_what_is_pending(patch: Patch) -> None:
    def missed(self: Commits, rank: int, number: int, reason: str) -> None:
        self._set_permit(self.permit.watermark, max(self.permit.keep_from, number + 1))

    patch.setattr(Commits, "missed", missed)


def drop_nothing_above_resume(patch: Patch) -> None:
    patch.setattr(copies.Shelf, "drop_above", lambda self, resume: None)


def identity_by_number(patch: Patch) -> None:
    patch.setattr(Version, "__eq__", lambda self, other: isinstance(other, Version) and self.number == other.number)
    patch.setattr(Version, "__hash__", lambda self: hash(self.number))


def streams_not_cut(patch: Patch) -> None:
    def cut(self: Streams, machine: Any, generation: Any) -> None:
        machine.streams_cut = generation
        machine.feed(StreamsCut(generation=generation))

    patch.setattr(Streams, "cut", cut)


def watermark_over_generations(patch: Patch) -> None:
    real = Coordinator._carry_out

    def carry_out(self: Coordinator, blueprint: Any, now: float) -> None:
        before = self.commits.permit
        real(self, blueprint, now)
        if before.keep_from > self.commits.permit.keep_from:
            self.commits.permit = before

    patch.setattr(Coordinator, "_carry_out", carry_out)


def newest_before_floor(patch: Patch) -> None:
    real = planner._Draft._pushes
    patch.setattr(planner._Draft, "_pushes", lambda self, rank: tuple(reversed(real(self, rank))))


def newcomer_without_floor(patch: Patch) -> None:
    real = planner._Draft._order

    def order(self: Any, node: str, rank: int) -> Any:
        full = real(self, node, rank)
        return replace(full, fetch=tuple(f for f in full.fetch if f.copy.seal.version == self.resume))

    patch.setattr(planner._Draft, "_order", order)


def seal_without_the_flag(patch: Patch) -> None:
    patch.setattr(TrainerCore, "is_aborted", property(lambda self: False))
    patch.setattr(TrainerCore, "end_step", _end_step_blindly)


def _end_step_blindly(self: TrainerCore) -> bool:
    if self.live is None:
        return False
    self._reach(Version(self.generation, self.live.number + 1))
    return True


def inventory_not_frozen(patch: Patch) -> None:
    real = Agent._fence

    def fence(self: Agent, order: Any, now: float) -> None:
        real(self, order, now)
        self._streams_cut = self.generation
        self._maybe_ack()

    patch.setattr(Agent, "_fence", fence)
    patch.setattr(Crew, "at_rest", lambda self: True)
    patch.setattr(storehouse.Storehouse, "is_quiet", lambda self: True)


def racks_ignored(patch: Patch) -> None:
    real = planner.place
    patch.setattr(planner, "place", lambda racks, count, before: real([None] * len(racks), count))


def resume_never_settled(patch: Patch) -> None:
    patch.setattr(Commits, "_settle_resume", Commits._note_protection)


def kept_whoever_sits_there(patch: Patch) -> None:
    patch.setattr(Trainer, "stands_at", lambda self, version: True)


def told_by_an_earlier_start(patch: Patch) -> None:
    patch.setattr(Process, "_is_outdated", lambda self, rank: False)


def hangs_unseen(patch: Patch) -> None:
    patch.setattr(Coordinator, "_look_for_hang", lambda self, now: None)


def schedule_changes_at_once(patch: Patch) -> None:
    def reschedule(self: TrainerCore, generation: Generation, schedule: Schedule) -> list[Missed]:
        if generation == self.generation:
            self.timetable = Timetable(Schedule(every=schedule.every))
        return []

    patch.setattr(TrainerCore, "reschedule", reschedule)


def late_news_of_a_schedule_kept_quiet(patch: Patch) -> None:
    patch.setattr(Timetable, "overlooked", lambda self, schedule, up_to: [])


def schedule_begins_too_early(patch: Patch) -> None:
    def reschedule(self: Commits, schedule: Schedule) -> None:
        real(self, replace(schedule, start=max(self.timetable.newest.start, schedule.start - 6)))

    real = Commits.reschedule
    patch.setattr(Commits, "reschedule", reschedule)


MUTATIONS: dict[str, Callable[[Patch], None]] = {
    "1 overwrite the watermark": overwrite_the_watermark,
    "2 no keep_from, watermark alone": keep_all_above_the_watermark,
    "3 permit passes what is pending": permit_passes_what_is_pending,
    "4 nothing dropped above resume": drop_nothing_above_resume,
    "4 schedule changes at once": schedule_changes_at_once,
    "4 late news of a schedule kept quiet": late_news_of_a_schedule_kept_quiet,
    "4 schedule begins where ranks are": schedule_begins_too_early,
    "6 streams not cut": streams_not_cut,
    "7 watermark over generations": watermark_over_generations,
    "8 newest before floor": newest_before_floor,
    "9 newcomer without floor": newcomer_without_floor,
    "10 seal without the flag": seal_without_the_flag,
    "14 inventory not frozen": inventory_not_frozen,
    "17 racks ignored": racks_ignored,
    "told by an earlier start": told_by_an_earlier_start,
    "hangs unseen": hangs_unseen,
}
RARE: dict[str, Callable[[Patch], None]] = {
    "5 identity by number": identity_by_number,
    "kept whoever sits there": kept_whoever_sits_there,
    "resume never settled": resume_never_settled,
}
"""Not run. The first was noticed once in 1,205 seeds: dropping stale copies at the plan hides it well. The others were
not noticed in 400 and 600; for them there are agent_trainer_dies_after_the_fence_was_acknowledged.txt and
resume_version_was_complete.txt among the transcripts."""


@pytest.mark.parametrize("name", list(MUTATIONS))
def test_mutation_is_caught(name: str, monkeypatch: Patch) -> None:
    MUTATIONS[name](monkeypatch)
    assert any(run_seed(seed).violation for seed in range(SEEDS)), f"{name}: not caught within {SEEDS} seeds"


@pytest.mark.parametrize("name", list(succession_mutations.MUTATIONS))
def test_mutation_of_succession_is_caught(name: str, monkeypatch: Patch) -> None:
    """Seeds in which nothing happens to a coordinator could not tell."""
    succession_mutations.MUTATIONS[name](monkeypatch)
    seeds = [seed for seed in range(SEEDS) if any("coordinator" in plan.kind for plan in draw(seed).faults)]
    assert any(run_seed(seed).violation for seed in seeds), f"{name}: not caught within {len(seeds)} seeds"
