"""What a node has seen of its generation and would report to a coordinator that takes over.

The coordinator learns of some things only by messages, not from what lies in the arena. The record notes each as it is
sent, because the coordinator it went to may be dead by now.
"""

from __future__ import annotations

from deadpool.protocol.agent.phase import GenerationState
from deadpool.protocol.identity import NO_GENERATION, Generation, Layout
from deadpool.protocol.messages import (
    AgentMessage,
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
from deadpool.protocol.permits import CaptureSchedule
from deadpool.protocol.quorum import Footing, Promise, Seated
from deadpool.protocol.schemes import Scheme


class TakeoverRecord:
    def __init__(self) -> None:
        self.promise = Promise()
        self._plan: Plan | None = None
        self._position: int | None = None
        self._electorate: Generation = NO_GENERATION
        self._vote: int | None = None
        self._newer: list[Seated] = []
        self._schedule: CaptureSchedule | None = None
        self._missed: set[int] = set()
        self._finished: set[int] = set()
        self._ended: dict[int, int] = {}
        self._lost: dict[int, TrainerLost] = {}
        self._quarantined = False

    def has_missed_one_before(self, plan: Plan) -> bool:
        """Whether a generation has gone whose plan this node has not heard: the script may have begun anew in it. A
        spare hears every plan and no Go."""
        return self._plan is not None and self._plan.generation < plan.changes.since

    def on_plan(self, plan: Plan, layout: Layout) -> None:
        self._plan, self._quarantined = plan, plan.quarantined
        self._position = layout.position_of(plan.orders[0].rank) if plan.orders else None
        if plan.generation.is_founding:
            self._vote_in(plan.generation)
        elif self._position is not None:
            self._newer.append(Seated(generation=plan.generation, position=self._position, changes=plan.changes))
        self._schedule = CaptureSchedule(plan.permit.schedule)
        for seen in (self._missed, self._finished, self._ended, self._lost):
            seen.clear()

    def on_go(self) -> None:
        assert self._plan is not None
        self._vote_in(self._plan.generation)

    def _vote_in(self, generation: Generation) -> None:
        self._electorate, self._vote = generation, self._position
        self._newer.clear()

    def on_permit(self, permit: Permit) -> None:
        if self._schedule is not None and permit.schedule != self._schedule.newest:
            self._schedule.add(permit.schedule, settled=permit.keep_from)
        self._missed = {number for number in self._missed if number >= permit.keep_from}

    def on_sent(self, message: AgentMessage) -> None:
        """To the coordinator, whether there is one or not."""
        match message:
            case Missed(number=number):
                self._missed.add(number)
            case Finished(rank=rank):
                self._finished.add(rank)
            case Ended(rank=rank, code=code):
                self._ended[rank] = code
            case TrainerLost(rank=int(rank)):
                self._lost[rank] = message
            case _:
                pass  # inventory, permit and trainers are reported as they are then

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
        current: GenerationState,
        *,
        permit: Permit | None,
        inventory: Inventory,
        trainers: tuple[TrainerInfo, ...],
        alone_s: float,
    ) -> TakeoverReport:
        plan = self._plan
        return TakeoverReport(
            term=self.promise.term,
            footing=self.footing(current.generation),
            running=current.is_running,
            resume=plan.resume if plan else None,
            permit=permit,
            schedules=self._schedule.schedules if self._schedule else (),
            holders=tuple(holder.node for holder in plan.holders) if plan else (),
            scheme=plan.scheme if plan else Scheme(),
            group=plan.group if plan else None,
            inventory=inventory,
            trainers=trainers,
            missed=tuple(sorted(self._missed)),
            finished=tuple(sorted(self._finished)),
            ended=tuple(sorted(self._ended.items())),
            lost=tuple(lost for _, lost in sorted(self._lost.items())),
            alone_s=alone_s,
        )
