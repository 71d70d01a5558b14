"""Rule 35, an audited step is computed twice: when a step is due, in which generation which ranks have told of it, and
what follows.

    order     all ranks tell four digests of the step behind a version that is captured
    again     all have told, and that version is the watermark: the job fences, and nobody is lost
    verdict   two computations agree in every rank, after two of them or after more. Where there is another one that
              does not, somebody has erred, and `computations.py` says who

What is known of an audit is lost with the coordinator: ranks then capture again by themselves, after some steps.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable

from deadpool.protocol.causes import FaultKind
from deadpool.protocol.coordinator.audit import FIRST_STEPS
from deadpool.protocol.coordinator.job import Phase
from deadpool.protocol.coordinator.recovery.fault_history import ObservedFault
from deadpool.protocol.coordinator.seams import CoordinatorCore
from deadpool.protocol.features.corruption.coordinator.computations import Computation, OddOne, difference
from deadpool.protocol.features.corruption.coordinator.votes import Evidence
from deadpool.protocol.identity import NO_GENERATION, Generation
from deadpool.protocol.messages import AuditOver, StepAudit, StepDigests

COMPUTATIONS = 4
"""A step is computed so often at most: fewer recoveries than end a job that commits nothing (`RETRIES`)."""

_PATIENCE_STEPS = 16
"""Ranks capture nothing for so many steps."""

_MARGIN, _WIDEST_MARGIN = 2, 1024
"""Steps from those that ranks have reported to the one that is audited. Wider, if a rank was past it already."""

_INEXACT = "the script was found not to be exact (event audit_differs), so it may compute something else by itself"
_NOT_DETERMINISTIC = (
    "no two of {count} computations of step {step} agree: the script is not deterministic, or a device errs all the "
    "time. Ranks that never repeat themselves: {ranks}. Call torch.use_deterministic_algorithms(True), or test the node"
)
_MOVES_ALONG = (
    "rank {rank} computes a step otherwise the second time on whatever node it is ({nodes}): it is the script, not a "
    "device"
)


class StepAudits:
    def __init__(self, core: CoordinatorCore, convict: Callable[[Evidence], None]) -> None:
        """`convict` counts an error of a node."""
        self._job, self._faults, self._drains = core.job, core.faults, core.drains
        self._recoveries, self._convict = core.audit, convict
        self._every = core.job.settings.audit_every
        self._order: StepAudit | None = None
        self._expected: Generation = NO_GENERATION  # the one in which ranks tell next
        self._told: dict[int, StepDigests] = {}  # in this generation
        self._computed: list[Computation] = []
        self._next_reason = ""  # why the step has to be computed once more, right now
        self._newest = 0  # step that was audited, or was to be
        self._is_asked_for = False  # by a person, however long ago the last one was
        self.last: dict[str, int] | None = None  # for people
        self._margin = _MARGIN
        self._nodes_of: defaultdict[int, set[str]] = defaultdict(set)  # on which a rank was found to differ
        self.audited_up_to: int | None = None
        self.ended = ""  # why no step is audited any more

    # --- order --------------------------------------------------------------------------------------------------------

    def refusal(self) -> str | None:
        """Why none can be asked for now; None: one can."""
        if self.ended:
            return self.ended
        if self._order is not None or self._is_asked_for:
            return "one is under way: ask again when it is over"
        if not self._job.can_drain or not self._job.is_full:
            return f"the job is {self._job.phase.value if self._job.is_full else 'shrunk'}: ask again when it runs"
        return None

    def ask(self) -> None:
        if self.refusal() is None:
            self._is_asked_for = True

    def look(self) -> None:
        """Looks, with every heartbeat, whether a step is due, or whether what was ordered has become impossible."""
        job = self._job
        if self.ended or job.phase is not Phase.RUNNING or job.released:
            return
        if self._order is None:
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
            self._end(max(steps), _INEXACT)
            return
        due = self._newest + self._every - 1 if not self._is_asked_for else 0
        earliest = max(due, max(steps) + self._margin)
        if earliest > max(steps) + 2 * self._margin:
            return
        before = next(each for each in itertools.count(earliest) if job.commits.timetable.captures(each))
        self._order = StepAudit(generation=job.generation, number=before + 1)
        self._expected = job.generation
        self._recoveries.is_held = True
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
        self._computed.append(self._told)
        self._told = {}
        if len(self._computed) > 1:
            self._judge(order)

    def _judge(self, order: StepAudit) -> None:
        *earlier, newest = self._computed
        if any(difference(each, newest) is None for each in earlier):
            self._settle(order, newest)
        elif len(self._computed) == COMPUTATIONS:
            found = [difference(each, newest) for each in earlier]
            ranks = set.intersection(*(set(each.ranks) for each in found if each is not None))
            names = ", ".join(map(str, sorted(ranks))) or "none"
            self._finish(order)
            self._end(order.number, _NOT_DETERMINISTIC.format(count=COMPUTATIONS, step=order.number, ranks=names))
        else:
            self._tell_difference(order, earlier[-1], newest)

    def _tell_difference(self, order: StepAudit, before: Computation, newest: Computation) -> None:
        """Somebody has erred, in this computation or in the one before: another one will tell."""
        found = difference(before, newest)
        assert found is not None
        rank = found.ranks[0]
        part = newest[rank].differs or found.stage.text
        self._job.out.emit(
            "step_audit_differs",
            step=order.number,
            ranks=list(found.ranks),
            nodes=[self._node_of(each) for each in found.ranks],
            stage=found.stage.value,
            part=part,
        )
        self._next_reason = f"rank {rank} has computed something else the second time: {part}"

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
        if self._next_reason:
            job.make_void_above(watermark)
            self._compute_again(self._next_reason, now)
        elif order.generation == job.generation and self._computed and watermark.number == order.number - 1:
            self._compute_again(f"audit: step {order.number} is computed a second time", now)

    def _compute_again(self, reason: str, now: float) -> None:
        self._next_reason = ""
        self._faults.recover(ObservedFault(kind=FaultKind.AUDIT, reason=reason, ranks=()), now)
        self._told, self._expected = {}, self._job.generation

    # --- verdict ------------------------------------------------------------------------------------------------------

    def _settle(self, order: StepAudit, trusted: Computation) -> None:
        self.audited_up_to = order.number
        odd = [
            OddOne(each, trusted, is_first=index == 0)
            for index, each in enumerate(self._computed)
            if difference(each, trusted) is not None
        ]
        computed, self._is_asked_for = len(self._computed), False
        self.last = {"step": order.number, "computed": computed}
        self._job.out.emit("step_audit_passed", step=order.number, ranks=len(trusted), computed=computed)
        self._finish(order)
        for each in odd:
            self._name(order, each)

    def _name(self, order: StepAudit, odd: OddOne) -> None:
        found, node = odd.difference, odd.node(self._node_of)
        if node is None:
            ranks = ", ".join(map(str, found.ranks))
            reason = f"one of several computations differs, on ranks {ranks} first, in {found.stage.text}"
            self._job.out.emit("corruption_unexplained", step=order.number, reason=reason)
            return
        for rank in found.ranks:
            self._nodes_of[rank].add(node)
            if len(nodes := self._nodes_of[rank]) > 1:
                self._end(order.number, _MOVES_ALONG.format(rank=rank, nodes=", ".join(sorted(nodes))))
                return
        self._convict(odd.evidence(node, order.number))

    def _node_of(self, rank: int) -> str:
        return self._job.seats[self._job.layout.position_of(rank)]

    # --- the end of one, and of all -----------------------------------------------------------------------------------

    def _put_off(self, order: StepAudit, reason: str) -> None:
        self._job.out.emit("step_audit_put_off", step=order.number, reason=reason)
        self._finish(order)

    def _finish(self, order: StepAudit) -> None:
        """One that nobody has told of is tried again at once, unless it would come too late for ever."""
        if self._computed or self._margin == _WIDEST_MARGIN:
            self._newest = order.number
        self._order, self._told, self._computed, self._next_reason = None, {}, [], ""
        self._recoveries.is_held = False
        self._job.out.send_each(self._job.members, AuditOver(generation=self._job.generation))

    def _end(self, step: int, reason: str) -> None:
        self.ended, self._is_asked_for = reason, False
        self._job.out.emit("step_audits_ended", step=step, reason=reason)

    def facts(self) -> dict[str, object]:
        if not (self._every or self._is_asked_for or self.last or self.ended):
            return {}
        told: dict[str, object] = {"every": self._every, "audited_up_to": self.audited_up_to, "ended": self.ended}
        told |= {"asked_for": self._is_asked_for, "last": self.last}
        return {"step_audits": told}
