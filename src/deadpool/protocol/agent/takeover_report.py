"""What a node has seen of its generation and would tell a coordinator that was not there.

Everything that the coordinator learns from news, and not from what lies in the arena, is noted here as it is told:
the news may have gone to a coordinator that is dead by now.
"""

from __future__ import annotations

from typing import Any

from deadpool.protocol.capture_schedule import Timetable
from deadpool.protocol.identity import NO_GENERATION, Generation
from deadpool.protocol.messages import (
    Ended,
    Finished,
    Inventory,
    Missed,
    Permit,
    Plan,
    TakeoverReport,
    TrainerInfo,
    TrainerLost,
)
from deadpool.protocol.quorum import Footing, Promise, Seated
from deadpool.protocol.topology import Layout


class Witness:
    def __init__(self) -> None:
        self.promise = Promise()
        self._plan: Plan | None = None
        self._position: int | None = None
        self._electorate: Generation = NO_GENERATION
        self._vote: int | None = None
        self._newer: list[Seated] = []
        self._running = False
        self._timetable: Timetable | None = None
        self._missed: set[int] = set()
        self._finished: set[int] = set()
        self._ended: dict[int, int] = {}
        self._lost: dict[int, str] = {}
        self._quarantined = False

    def has_missed(self, plan: Plan) -> bool:
        """A generation has gone whose plan this node has not heard: the script may have begun anew in it. A spare hears
        every plan, and of no Go."""
        return self._plan is not None and self._plan.generation < plan.changes.since

    def planned(self, plan: Plan, layout: Layout) -> None:
        self._plan, self._running, self._quarantined = plan, False, plan.quarantined
        self._position = layout.position_of(plan.orders[0].rank) if plan.orders else None
        if plan.generation.is_founding:
            self._vote_in(plan.generation)
        elif self._position is not None:
            self._newer.append(Seated(generation=plan.generation, position=self._position, changes=plan.changes))
        self._timetable = Timetable(plan.permit.schedule)
        for seen in (self._missed, self._finished, self._ended, self._lost):
            seen.clear()

    def went(self) -> None:
        assert self._plan is not None
        self._running = True
        self._vote_in(self._plan.generation)

    def _vote_in(self, generation: Generation) -> None:
        self._electorate, self._vote = generation, self._position
        self._newer.clear()

    def permitted(self, permit: Permit) -> None:
        if self._timetable is not None and permit.schedule != self._timetable.newest:
            self._timetable.add(permit.schedule, settled=permit.keep_from)
        self._missed = {number for number in self._missed if number >= permit.keep_from}

    def told(self, message: Any) -> None:
        """To the coordinator, whether there is one or not."""
        match message:
            case Missed(number=number):
                self._missed.add(number)
            case Finished(rank=rank):
                self._finished.add(rank)
            case Ended(rank=rank, code=code):
                self._ended[rank] = code
            case TrainerLost(rank=int(rank), reason=reason):
                self._lost[rank] = reason

    def footing(self, generation: Generation) -> Footing:
        return Footing(
            promise=self.promise,
            generation=generation,
            planned=self._plan.generation if self._plan else NO_GENERATION,
            position=self._position,
            electorate=self._electorate,
            vote=self._vote,
            newer=tuple(self._newer),
            quarantined=self._quarantined,
        )

    def report(
        self,
        generation: Generation,
        *,
        fenced: bool,
        permit: Permit | None,
        inventory: Inventory,
        trainers: tuple[TrainerInfo, ...],
    ) -> TakeoverReport:
        plan = self._plan
        return TakeoverReport(
            term=self.promise.term,
            footing=self.footing(generation),
            running=self._running and not fenced,
            resume=plan.resume if plan else None,
            permit=permit,
            schedules=self._timetable.schedules if self._timetable else (),
            holders=tuple(holder.node for holder in plan.holders) if plan else (),
            inventory=inventory,
            trainers=trainers,
            missed=tuple(sorted(self._missed)),
            finished=tuple(sorted(self._finished)),
            ended=tuple(sorted(self._ended.items())),
            lost=tuple(sorted(self._lost.items())),
        )
