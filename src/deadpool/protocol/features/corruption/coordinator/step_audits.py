"""Rule 35, an audited step is computed twice: when a step is due, in which generation which ranks have told of it, and
what follows.

    order     all ranks tell four digests of the step behind a version that is captured
    again     all have told, and that version is the watermark: the job fences, and nobody is lost
    judge     two computations agree in every rank. If it is the turn of a position, a spare takes its ranks for another
              one (rule 36, a spare is the judge); what follows from each computation is decided in `judges.py`
    verdict   if some computation is not like those that are trusted, somebody has erred, and `findings.py` says who

What is known of an audit is lost with the coordinator: ranks then capture again by themselves, after some steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import assert_never

from deadpool.protocol.causes import FaultKind
from deadpool.protocol.coordinator.audit import FIRST_STEPS
from deadpool.protocol.coordinator.job import Phase
from deadpool.protocol.coordinator.recovery.fault_history import ObservedFault
from deadpool.protocol.coordinator.seams import CoordinatorCore
from deadpool.protocol.features.corruption.coordinator.audit_verdicts import AuditVerdicts
from deadpool.protocol.features.corruption.coordinator.computations import position_that_differs
from deadpool.protocol.features.corruption.coordinator.findings import Case, Named
from deadpool.protocol.features.corruption.coordinator.judge_turns import JudgeTurns
from deadpool.protocol.features.corruption.coordinator.judges import (
    Again,
    Computed,
    Settled,
    Turn,
    Undecided,
    Unrepeated,
    decide,
)
from deadpool.protocol.features.corruption.coordinator.votes import Evidence
from deadpool.protocol.identity import NO_GENERATION, Generation
from deadpool.protocol.messages import AuditOver, StepAudit, StepDigests

_PATIENCE_STEPS = 16
"""Ranks capture nothing for so many steps."""

_MARGIN, _WIDEST_MARGIN = 2, 1024
"""Steps from those that ranks have reported to the one that is audited. Wider, if a rank was past it already."""

_INEXACT = "the script was found not to be exact (event audit_differs), so it may compute something else by itself"


class StepAudits:
    def __init__(self, core: CoordinatorCore, convict: Callable[[Evidence, int], None]) -> None:
        """`convict` counts errors of a node."""
        self._job, self._faults, self._drains = core.job, core.faults, core.drains
        self._recoveries, self._convict = core.audit, convict
        self._every = core.job.settings.audit_every
        self._order: StepAudit | None = None
        self._expected: Generation = NO_GENERATION  # the one in which ranks tell next
        self._told: dict[int, StepDigests] = {}  # in this generation
        self._computed: list[Computed] = []
        self._next: tuple[Again, str] | None = None  # the step has to be computed once more right now, and why
        self.turns = JudgeTurns(core)
        self.due: int | None = None  # the position whose turn it is in the audit that is under way
        self._turn: Turn | None = None  # since a spare has taken its ranks
        self._newest = 0  # step that was audited, or was to be
        self._is_asked_for = False  # by a person, however long ago the last one was
        self._margin = _MARGIN
        self.verdicts = AuditVerdicts(core.job, self.turns, convict)

    @property
    def ended(self) -> str:
        """Why no step is audited any more."""
        return self.verdicts.ended

    # --- order --------------------------------------------------------------------------------------------------------

    def refusal(self, position: int | None = None) -> str | None:
        """Why none can be asked for now; None: one can. `position`: whose ranks a spare is to compute too."""
        if self.ended:
            return self.ended
        if self._order is not None or self._is_asked_for:
            return "one is under way: ask again when it is over"
        if not self._job.can_drain or not self._job.is_full:
            return f"the job is {self._job.phase.value if self._job.is_full else 'shrunk'}: ask again when it runs"
        if position is not None and position not in range(self._job.layout.positions):
            return f"there is no such rank: give 0 to {self._job.layout.world_size - 1}"
        if position is not None and not self.turns.spares(position):
            return "there is no healthy spare that could compute the step too"
        return None

    def ask(self, position: int | None = None) -> None:
        if self.refusal(position) is None:
            self._is_asked_for = True
            self.turns.put_first(position)

    def look(self) -> None:
        """Looks, with every heartbeat, whether a step is due, or whether what was ordered has become impossible."""
        job = self._job
        if self.ended or job.phase is not Phase.RUNNING or job.released:
            return
        if self._order is None:
            self.turns.look()
            self._order_if_due()
        elif (obstacle := self._obstacle(self._order)) is not None:
            self._put_off(self._order, obstacle)

    def _order_if_due(self) -> None:
        job, steps = self._job, self._steps()
        if not (self._every or self._is_asked_for):
            return
        if self._recoveries.is_under_way or self._drains.current is not None or not job.is_full:
            return
        if len(steps) < job.layout.world_size or min(steps) < FIRST_STEPS or job.commits.permit.watermark is None:
            return
        if any(verdict.get("exact") is False for verdict in self._recoveries.verdicts):
            self.verdicts.end(max(steps), _INEXACT)
            return
        due = self._newest + self._every - 1 if not self._is_asked_for else 0
        if self._is_asked_for and self.turns.is_awaited:
            return
        earliest = max(due, max(steps) + self._margin)
        if earliest > max(steps) + 2 * self._margin:
            return
        before = next(each for each in itertools.count(earliest) if job.commits.timetable.captures(each))
        self._order = StepAudit(generation=job.generation, number=before + 1)
        self._expected = job.generation
        self._recoveries.is_held = True
        self.due = self.turns.due
        self.turns.begin()
        job.out.emit("step_audit_ordered", step=self._order.number)
        job.out.send_each(job.members, self._order)

    def _obstacle(self, order: StepAudit) -> str | None:
        """Why this audit comes to nothing."""
        if self._job.generation != self._expected:
            return "a fault came first"
        steps, is_first = self._steps(), order.generation == self._expected
        if is_first and order.number - 1 in self._job.commits.ledger.missed:
            return "a rank has no copy of the version before it"
        patience = _PATIENCE_STEPS if is_first else 0
        if len(steps) < self._job.layout.world_size or min(steps) <= order.number + patience:
            return None
        if is_first and self._computed:
            return "the version before it was not committed in time"
        return "not all ranks have told what they computed"

    @property
    def compares(self) -> bool:
        """Whether what ranks compute in this generation is compared."""
        return self._order is not None and self._job.generation == self._expected

    def _steps(self) -> list[int]:
        return [step for member in self._job.members.values() for step in member.steps.values()]

    # --- what ranks tell ----------------------------------------------------------------------------------------------

    def on_digests(self, told: StepDigests) -> None:
        order, job = self._order, self._job
        if order is None or told.number != order.number or job.generation != self._expected:
            return
        if told.late:
            self._put_off(order, f"the order came too late for rank {told.rank}")
            self._margin = min(_WIDEST_MARGIN, 4 * self._margin)
            return
        self._told[told.rank] = told
        if len(self._told) < job.layout.world_size:
            return
        self._computed.append(Computed(self._told, job.seats))
        self._told = {}
        if len(self._computed) > 1:
            self._judge(order)

    def _judge(self, order: StepAudit) -> None:
        turn = self._turn
        match decide(self._computed, turn, self.turns.spares(turn.position) if turn is not None else ()):
            case Settled() as settled:
                if not self._begin_turn(order, settled):
                    self._conclude(order, lambda case: self.verdicts.settle(case, settled), turn)
            case Again(moves=moves) as again if not moves or self.turns.allows(moves):
                self._next = again, self.verdicts.tell_difference(order.number, self._computed)
            case Unrepeated():
                if not self._begin_turn_of_suspect():
                    self._conclude(order, self.verdicts.tell_unrepeated, None)
            case Again() | Undecided():
                assert turn is not None
                self._conclude(order, self.verdicts.tell_undecided, turn)
            case _ as never:
                assert_never(never)

    def _conclude(self, order: StepAudit, tell: Callable[[Case], None], turn: Turn | None) -> None:
        case = self._case(order)
        self._is_asked_for = False
        self.turns.on_audit(turn.position if turn is not None else None)
        self._finish(order)
        tell(case)

    def _begin_turn(self, order: StepAudit, settled: Settled) -> bool:
        """Two computations agree, and so nobody has erred in both who does not err always. Returns whether a spare is
        to compute the ranks whose turn it is. Where computations differ and it is nobody's turn, it is that of the
        ranks that have differed."""
        if self._turn is not None:
            return False
        position = self.due if self.due is not None else self._suspect(order, settled)
        return position is not None and self._move(position, self.turns.judge_of(position))

    def _suspect(self, order: StepAudit, settled: Settled) -> int | None:
        """The position of the node that would be named now."""
        if not self.turns.is_on:
            return None
        nodes = {each.evidence.node for each in self._case(order).findings(settled) if isinstance(each, Named)}
        return self._job.seats.index(nodes.pop()) if len(nodes) == 1 and nodes.issubset(self._job.seats) else None

    def _begin_turn_of_suspect(self) -> bool:
        """No two computations agree. If all differ first on one node, it may err each time in another way."""
        position = position_that_differs([each.told for each in self._computed], self._job.layout)
        return position is not None and self._move(position, self.turns.judge_of_suspect(position))

    def _move(self, position: int, judge: str | None) -> bool:
        """Returns whether there is a judge."""
        if judge is None:
            return False
        self._turn = turn = Turn(position, self._job.seats[position])
        self._next = Again({position: judge}), f"audit: node {judge} computes the step for node {turn.node}, to compare"
        return True

    # --- again --------------------------------------------------------------------------------------------------------

    def on_frozen(self) -> None:
        """A fault has come while a step was computed again, and not all of it was compared: nothing that follows from
        it is used."""
        order, job, watermark = self._order, self._job, self._job.commits.permit.watermark
        is_fault = job.generation != self._expected
        if order is not None and is_fault and self._expected != order.generation and watermark is not None:
            job.make_void_above(watermark)

    def advance(self, now: float) -> None:
        order, job = self._order, self._job
        if order is None or job.generation != self._expected or not job.can_drain:
            return
        watermark = job.commits.permit.watermark
        if watermark is None:
            return
        if self._next is not None:
            again, reason = self._next
            job.make_void_above(watermark)
            job.move(again.moves)
            self._compute_again(reason, now)
        elif order.generation == job.generation and self._computed and watermark.number == order.number - 1:
            self._compute_again(f"audit: step {order.number} is computed a second time", now)

    def _compute_again(self, reason: str, now: float) -> None:
        self._next = None
        self._faults.recover(ObservedFault(kind=FaultKind.AUDIT, reason=reason, ranks=()), now)
        self._told, self._expected = {}, self._job.generation

    def _case(self, order: StepAudit) -> Case:
        return Case(
            step=order.number,
            layout=self._job.layout,
            computed=self._computed,
            turn=self._turn,
            confirmed=self.turns.confirmed.copy(),
        )

    # --- the end of one -----------------------------------------------------------------------------------------------

    def _put_off(self, order: StepAudit, reason: str) -> None:
        """Where nodes disagree by now it is tried again at once, in a step after this one."""
        turn, computed = self._turn, self._computed
        self._job.out.emit("step_audit_put_off", step=order.number, reason=reason)
        self._finish(order)
        if turn is not None and not all(each.agrees_with(computed[0]) for each in computed):
            self.turns.suspect(turn.position)
            self._newest = 0

    def _finish(self, order: StepAudit) -> None:
        """One that nobody has told of is tried again at once, unless it would come too late for ever."""
        if self._computed or self._margin == _WIDEST_MARGIN:
            self._newest = order.number
        self._order, self._told, self._computed, self._next = None, {}, [], None
        self._turn, self.due = None, None
        self.turns.end()
        self._recoveries.is_held = False
        self._job.out.send_each(self._job.members, AuditOver(generation=self._job.generation))

    def facts(self) -> dict[str, object]:
        if not (self._every or self._is_asked_for or self.verdicts.last or self.ended):
            return {}
        told = {"every": self._every, "asked_for": self._is_asked_for and not self.ended}
        return {"step_audits": told | self.verdicts.facts()}
