"""The audit of exactness: a recovery is played on purpose, and what is computed again is compared with what was.

    order    every rank tells its digests at one version, which it has just reached, and captures nothing from there on
    end      a rank ends, right behind an optimizer step; the node that has rehearsed its position takes it
    redo     all ranks go back to a version before, compute the same steps again, and tell their digests again
    verdict  a script is exact if every rank's are equal; else the first part that differs is named

A newcomer that lacks something and a survivor that does not come back exactly both show in this. If a person asks, a
last one follows in which ranks stop inside of a step and go back to where it begins: they tell that version again,
because a survivor may have written to the state that it keeps.

The end of the rank is a fault like any other, but that nobody is blamed for it. A fault that comes first puts the audit
off. What is known of an audit is lost with the coordinator: ranks then capture again by themselves, after some steps.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from deadpool.protocol.causes import EndCause
from deadpool.protocol.coordinator.audit_verdict import Told, judge
from deadpool.protocol.coordinator.job import JobState, Phase
from deadpool.protocol.coordinator.leaving.drain import Drains
from deadpool.protocol.coordinator.leaving.ending import Ending
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.recovery.rehearsals import Rehearsals
from deadpool.protocol.messages import Audit, AuditOver, Digested
from deadpool.protocol.seal import Extent, Seal

FIRST_STEPS = 2
"""The steps that every rank takes before the first audit: frameworks settle in them."""

_MARGIN, _WIDEST_MARGIN = 2, 1024
"""Steps from those that ranks have reported to the one of the audit. Wider, if a rank was past it already."""

_WAIT_S = 300.0
"""For a spare that has rehearsed the rank, or for a version: some rehearsals never succeed."""

_ADVICE = "the script is not exact, see docs/exactness.md; --on-inexact warn goes on all the same"


class _Place(NamedTuple):
    """Where a rank is to end."""

    position: int
    inside: bool = False  # of a step


@dataclass(slots=True)
class _Drill:
    place: _Place
    order: Audit
    ended: bool = False
    told: Told = field(default_factory=Told)


class RecoveryAudit:
    def __init__(self, job: JobState, rehearsals: Rehearsals, drains: Drains, ending: Ending) -> None:
        self._job, self._rehearsals, self._drains, self._ending = job, rehearsals, drains, ending
        self._places = [_Place(0)] if job.settings.audit else []  # still to come
        self._extents: dict[int, tuple[int, int]] = {}  # by rank: what tells kinds of ranks apart
        self._margin = _MARGIN
        self._has_spares = False  # now, or at any time before
        self._waits_since: float | None = None  # for what has to be there before a rank may end
        self._drill: _Drill | None = None
        self.verdicts: list[dict[str, object]] = []  # for people, in their order
        self.is_held = False  # ranks are told of another kind of audit now

    @property
    def is_under_way(self) -> bool:
        return bool(self._places)

    def refusal(self) -> str | None:
        """Why none can be asked for now; None: one can."""
        job = self._job
        if self._drill is not None:
            return "an audit is under way: ask again when it is over"
        if not job.can_drain or not job.is_full:
            return f"the job is {job.phase.value if job.is_full else 'shrunk'}: ask again when it runs"
        return None

    def ask(self) -> None:
        """A person wants one position of each kind to be taken by another process, in turn, and the last one again
        inside of a step."""
        if self.refusal() is None:
            positions = self._one_of_each_kind()
            self._places = [*map(_Place, positions), _Place(positions[-1], inside=True)]
            self._margin, self._waits_since = _MARGIN, None

    def _one_of_each_kind(self) -> list[int]:
        """Ranks with different amounts of state are of different kinds; the first position is one of its own."""
        layout, kinds = self._job.layout, dict[object, int]()
        for position in range(1, layout.positions):
            kinds.setdefault(tuple(self._extents.get(rank) for rank in layout.ranks_at(position)), position)
        return [0, *kinds.values()]

    def on_sealed(self, seal: Seal) -> None:
        self._extents[seal.rank] = _size(seal.extent)

    # --- order --------------------------------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Looks, with every heartbeat, whether an audit is due or has ended."""
        job, drill = self._job, self._drill
        if job.phase is not Phase.RUNNING or job.released:
            return
        if drill is None:
            self._begin_if_due(now)
            return
        is_past = min(self._steps().values(), default=0) > drill.order.number
        if drill.order.generation != job.generation:
            if not drill.ended:
                self._finish()  # a fault came first
            elif is_past:
                self._conclude(drill)
        elif drill.order.inside and not drill.order.ends:
            if is_past:
                self._try_again()
            else:
                self._end_rank_if_due(drill)

    def _begin_if_due(self, now: float) -> None:
        job = self._job
        if not self._places or self.is_held or not job.is_full or self._drains.current is not None:
            return
        steps, place = self._steps(), self._places[0]
        if len(steps) < job.layout.world_size or min(steps.values()) < FIRST_STEPS:
            return
        if (obstacle := self._obstacle(place)) is not None:
            self._wait(obstacle, now)
            return
        self._waits_since = None
        number, rank = max(steps.values()) + self._margin, job.layout.ranks_at(place.position)[0]
        if place.inside:
            number = next(each for each in itertools.count(number) if job.commits.timetable.captures(each))
        order = Audit(generation=job.generation, number=number, rank=rank, inside=place.inside)
        self._drill = _Drill(place, order)
        job.out.emit("audit_ordered", rank=rank, step=number, inside=place.inside)
        job.out.send_each(job.members, self._drill.order)

    def _obstacle(self, place: _Place) -> str | None:
        """Why no rank may end yet."""
        if self._job.commits.permit.watermark is None:
            return "no version was committed"
        if not self._is_rehearsed(place.position):
            return f"no spare has rehearsed the ranks of position {place.position}"
        return None

    def _wait(self, obstacle: str, now: float) -> None:
        self._waits_since = now if self._waits_since is None else self._waits_since
        if now - self._waits_since > _WAIT_S:
            self._give_up(f"for {_WAIT_S:g} s {obstacle}")

    def _give_up(self, reason: str) -> None:
        """Gives up the audit, and leaves out those that are still to come."""
        for place in self._places:
            self._release(place.position)
        self._places, self._waits_since = [], None
        self._job.out.emit("audit_given_up", reason=reason)

    def _release(self, position: int) -> None:
        """Spares rehearse what they choose again."""
        for member in self._job.members.values():
            member.reserved_position = None if member.reserved_position == position else member.reserved_position

    def _steps(self) -> dict[int, int]:
        return {rank: step for member in self._job.members.values() for rank, step in member.steps.items()}

    def _is_rehearsed(self, position: int) -> bool:
        """A spare stands ready, or there never was one: then a fresh process takes the rank, on its own node."""
        spares = [member for member in self._job.members.values() if member.is_spare and not member.quarantined]
        self._has_spares = self._has_spares or bool(spares)
        ranks = set(self._job.layout.ranks_at(position))
        if any(ranks <= {t.rank for t in each.trainers if t.state == "parked"} for each in spares):
            return True
        if spares and all(each.reserved_position != position for each in spares):
            spares[0].reserved_position = position
            self._rehearsals.assign_all()
        return not self._has_spares

    # --- the end of a rank --------------------------------------------------------------------------------------------

    def _end_rank_if_due(self, drill: _Drill) -> None:
        """Ends the audited rank once every rank has told: the fence that follows ends the generation in which they can.
        Inside of a step it waits until the version is committed: else all would go back to one before it."""
        job, committed = self._job, self._job.commits.permit.watermark
        if len(drill.told.first) < job.layout.world_size:
            return
        if drill.order.inside and (committed is None or committed.number < drill.order.number):
            return
        drill.order = replace(drill.order, ends=True)
        job.out.emit("audit_ends_rank", rank=drill.order.rank, step=drill.order.number)
        job.out.send_each(job.members, drill.order)

    def ends(self, rank: int) -> bool:
        """Whether it is the audit that has ended this rank's trainer."""
        order = self._drill.order if self._drill is not None else None
        return order is not None and order.ends and (order.rank, order.generation) == (rank, self._job.generation)

    def on_ended(self, member: Member) -> None:
        """Makes the node whose rank was ended a spare, if one has rehearsed its position and a majority is left."""
        assert self._drill is not None
        self._drill.ended = True
        job = self._job
        if job.has_healthy_spare and job.has_majority_without(member):
            member.position = None

    # --- verdict ------------------------------------------------------------------------------------------------------

    def on_digested(self, digested: Digested) -> None:
        drill = self._drill
        if drill is None or digested.number != drill.order.number:
            return
        drill.told.named.update(digested.named)
        if digested.generation != drill.order.generation:
            if not drill.ended:
                return  # a fault came first, and puts the audit off
            drill.told.unmoved.update([] if digested.moved else [digested.rank])
            drill.told.again[digested.rank] = digested.parts
            if len(drill.told.again) == self._job.layout.world_size:
                self._conclude(drill)
        elif digested.irreplaceable and not drill.ended:
            self._give_up(f"rank {digested.rank} has objects that no other process can have (event inexact_script)")
            self._finish()
        elif digested.parts:
            drill.told.first[digested.rank] = digested.parts
            self._end_rank_if_due(drill)
        elif not drill.ended:
            self._try_again()

    def on_missed(self, number: int) -> None:
        """A rank has no copy of this version, so nobody can go back to it."""
        drill = self._drill
        if drill is not None and drill.place.inside and drill.order.number == number and not drill.ended:
            self._try_again()

    def _try_again(self) -> None:
        """The order came too late for a rank, or the version was not committed while ranks stood in its step."""
        self._margin *= 4
        if self._margin > _WIDEST_MARGIN:
            self._give_up(
                "steps are too short: ranks were past each step that was named, or had no copy of its version"
            )
        self._finish()

    def _conclude(self, drill: _Drill) -> None:
        job = self._job
        self._places, self._margin = [place for place in self._places if place != drill.place], _MARGIN
        self._release(drill.place.position)
        self._finish()
        verdict = judge(drill.order, drill.told, job.layout.world_size, job.out)
        self.verdicts += [verdict.facts] if verdict.facts else []
        if verdict.differs and job.settings.on_inexact == "stop":
            reason = f"in a recovery that was played, {verdict.differs} differs: {_ADVICE}"
            self._ending.end(EndCause.INEXACT, reason, failed=True)

    def _finish(self) -> None:
        self._drill = None
        self._job.out.send_each(self._job.members, AuditOver(generation=self._job.generation))


def _size(extent: Extent) -> tuple[int, int]:
    return extent.unique_bytes, extent.replica_bytes
