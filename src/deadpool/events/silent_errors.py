"""What audits of steps and comparisons of replicas have found, read from a job's events: the story in one paragraph
each, and the marks of the dashboard.

`SilentErrors` takes one record after the other. An audit begins with `step_audit_ordered` and ends with its verdict; if
a device has erred, its name follows. Replicas that differ begin with `corruption_suspected`, or with the name at once.
Rule 34, replicas vote; rule 35, an audited step is computed twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from itertools import chain
from typing import Any, assert_never

Record = dict[str, Any]

_REMEMBERED = 500
"""Audits without a finding that are kept; the others are all kept."""


class CaseSource(Enum):
    AUDIT = "audit"
    REPLICAS = "replicas"


class CaseVerdict(Enum):
    UNDER_WAY = "under way"
    ALIKE = "alike"
    NAMED = "named"
    NOBODY_NAMED = "nobody named"
    PUT_OFF = "put off"
    ENDED = "ended"
    """No step is audited any more."""
    UNSOLVED = "unsolved"
    """Replicas go on differing."""


_STAGES = {
    "before": "in its state when the step began",
    "gradients": "in its own gradients, before they were reduced",
    "reduced": "in the gradients that its optimizers took",
    "after": "in what it logged, or in its state after the step",
}
_OF_ALIKE = "their own gradients, what their optimizers took, what they logged, and their state before and after"
_COUNTS = {2: "twice", 3: "three times", 4: "four times"}
_GONE_ON = "Two computations agree in every rank: the job goes on from these."


@dataclass(slots=True)
class SilentErrorCase:
    """One audit, or one version in which replicas have differed."""

    source: CaseSource
    step: int
    began: float
    verdict: CaseVerdict = CaseVerdict.UNDER_WAY
    ended: float | None = None
    computed: int = 0
    rank_count: int = 0
    differences: list[Record] = field(default_factory=list)  # of two computations, or of replicas
    named: list[Record] = field(default_factory=list)
    reason: str = ""
    causes: set[str] = field(default_factory=set)

    @property
    def is_error(self) -> bool:
        return bool(self.differences or self.named)

    def facts(self) -> dict[str, Any]:
        """Returns what pages and JSON have of it."""
        first = self.differences[0] if self.differences else {}
        return {
            "source": self.source.value,
            "step": self.step,
            "began": self.began,
            "ended": self.ended,
            "verdict": self.verdict.value,
            "is_error": self.is_error,
            "stage": first.get("stage"),
            "part": first.get("part"),
            "ranks": list(first.get("ranks") or ()),
            "named": [{"node": each["node"], "ranks": list(each.get("ranks") or ())} for each in self.named],
            "text": paragraph(self),
        }


class SilentErrors:
    def __init__(self) -> None:
        self._found: list[SilentErrorCase] = []  # all but those that found nothing
        self._alike: deque[SilentErrorCase] = deque(maxlen=_REMEMBERED)
        self.alike_count = 0
        self._open: dict[CaseSource, SilentErrorCase] = {}

    def add(self, record: Record) -> None:
        """Looks at the records of a few names."""
        match record.get("what"):
            case "step_audit_ordered":
                self._close_lost(record)
                self._begin(CaseSource.AUDIT, record)
            case "step_audit_differs":
                self._of(CaseSource.AUDIT, record).differences.append(record)
            case "step_audit_passed":
                self._pass(record)
            case "step_audit_put_off":
                self._end(CaseSource.AUDIT, record, CaseVerdict.PUT_OFF)
            case "step_audits_ended":
                self._end(CaseSource.AUDIT, record, CaseVerdict.ENDED)
            case "corruption_suspected":
                self._of(CaseSource.REPLICAS, record).differences.append(record)
            case "corruption_found":
                self._name(record)
            case "corruption_unexplained":
                finding = self._judged(record) or self._of(CaseSource.REPLICAS, record)
                self._settle(finding, record, CaseVerdict.NAMED if finding.named else CaseVerdict.NOBODY_NAMED)
            case "corruption_unsolved":
                self._end(CaseSource.REPLICAS, record, CaseVerdict.UNSOLVED)
            case "took_over":
                self._close_lost(record)
            case _:
                pass

    @property
    def findings(self) -> list[SilentErrorCase]:
        """Returns them in the order in which they began."""
        return sorted(chain(self._found, self._alike), key=lambda each: each.began)

    # --- one record ---------------------------------------------------------------------------------------------------

    def _begin(self, source: CaseSource, record: Record) -> SilentErrorCase:
        finding = SilentErrorCase(source=source, step=int(record["step"]), began=float(record["t"]))
        self._open[source] = finding
        self._found.append(finding)
        return finding

    def _of(self, source: CaseSource, record: Record) -> SilentErrorCase:
        """The one that is under way, or another one, where the log does not tell how it began."""
        known = self._open.get(source)
        finding = known if known is not None and known.step == record["step"] else self._begin(source, record)
        _note_cause(finding, record)
        return finding

    def _settle(self, finding: SilentErrorCase, record: Record, verdict: CaseVerdict) -> None:
        finding.verdict, finding.ended = verdict, float(record["t"])
        finding.reason = str(record.get("reason") or "")
        _note_cause(finding, record)
        if self._open.get(finding.source) is finding:
            del self._open[finding.source]

    def _end(self, source: CaseSource, record: Record, verdict: CaseVerdict) -> None:
        finding = self._judged(record) if source is CaseSource.AUDIT else None
        self._settle(finding or self._of(source, record), record, verdict)

    def _pass(self, record: Record) -> None:
        finding = self._of(CaseSource.AUDIT, record)
        finding.computed, finding.rank_count = int(record["computed"]), int(record["ranks"])
        if finding.differences or finding.computed > 2:
            self._settle(finding, record, CaseVerdict.NOBODY_NAMED)  # unless a name follows
            return
        self._settle(finding, record, CaseVerdict.ALIKE)
        self._found.remove(finding)
        self._alike.append(finding)
        self.alike_count += 1

    def _name(self, record: Record) -> None:
        finding = self._judged(record) or self._of(CaseSource.REPLICAS, record)
        finding.named.append(record)
        self._settle(finding, record, CaseVerdict.NAMED)

    def _judged(self, record: Record) -> SilentErrorCase | None:
        """The audit that this follows from: its verdict is the newest one, and of the same step."""
        newest = self._found[-1] if self._found else None
        is_its = newest is not None and newest.source is CaseSource.AUDIT and newest.step == record["step"]
        return newest if is_its and newest is not None and newest.computed else None

    def _close_lost(self, record: Record) -> None:
        """A coordinator that is lost takes its audit with it."""
        known = self._open.get(CaseSource.AUDIT)
        if known is not None:
            lost = {"t": record["t"], "reason": "its coordinator was lost before there was a verdict"}
            self._settle(known, lost, CaseVerdict.PUT_OFF)


def _note_cause(finding: SilentErrorCase, record: Record) -> None:
    if record.get("cause"):
        finding.causes.add(str(record["cause"]))


def read_silent_errors(records: Iterable[Record]) -> SilentErrors:
    found = SilentErrors()
    for record in records:
        found.add(record)
    return found


# --- in words ---------------------------------------------------------------------------------------------------------


def paragraph(finding: SilentErrorCase) -> str:
    clock = datetime.fromtimestamp(finding.began).strftime("%H:%M:%S")
    match finding.source:
        case CaseSource.AUDIT:
            head, said = f"Audit of step {finding.step:,}", _audit_sentences(finding)
        case CaseSource.REPLICAS:
            head, said = f"Replicas at step {finding.step:,}", _replica_sentences(finding)
        case _ as never:
            assert_never(never)
    return f"{head} ({clock}): {' '.join(said)}"


def _audit_sentences(finding: SilentErrorCase) -> list[str]:
    sentences = [_difference(each, nth) for nth, each in enumerate(finding.differences, start=2)]
    match finding.verdict:
        case CaseVerdict.UNDER_WAY:
            sentences.append("The verdict is not there yet.")
        case CaseVerdict.ALIKE:
            sentences.append(f"all {finding.rank_count} ranks have computed it twice, and alike: {_OF_ALIKE}.")
        case CaseVerdict.NAMED | CaseVerdict.NOBODY_NAMED:
            sentences.append(
                f"It was computed {_COUNTS.get(finding.computed, f'{finding.computed} times')}. {_GONE_ON}"
            )
            sentences += _names(finding)
        case CaseVerdict.PUT_OFF:
            sentences.append(f"it came to nothing: {finding.reason}.")
        case CaseVerdict.ENDED:
            sentences.append(f"No step is audited any more: {_full_stop(finding.reason)}")
        case CaseVerdict.UNSOLVED:
            sentences.append(f"{_full_stop(finding.reason)}")
        case _ as never:
            assert_never(never)
    return sentences


def _replica_sentences(finding: SilentErrorCase) -> list[str]:
    sentences = []
    for each in finding.differences:
        sentences.append(f"{_ranks(each)} hold the same state otherwise; the steps were computed again.")
    sentences += _names(finding)
    if finding.verdict is CaseVerdict.UNSOLVED:
        sentences.append(f"It was not found who is right: {_full_stop(finding.reason)}")
    elif finding.verdict is CaseVerdict.UNDER_WAY:
        sentences.append("The verdict is not there yet.")
    return sentences


def _difference(record: Record, nth: int) -> str:
    """What differs between this computation and the one before."""
    which = {2: "second", 3: "third", 4: "fourth"}.get(nth, f"{nth}th")
    stage = _STAGES.get(str(record.get("stage")), "somewhere")
    nodes = ", ".join(dict.fromkeys(map(str, record.get("nodes") or ())))
    where = f" on {nodes}" if nodes else ""
    return f"the {which} time, {_ranks(record)}{where} differed first, {stage} ({record.get('part')})."


def _names(finding: SilentErrorCase) -> list[str]:
    found = []
    for each in finding.named:
        errors = f", its error number {each['errors']}" if each.get("errors") else ""
        digests, others = each.get("digests") or (), each.get("others") or ()
        evidence = f" ({digests[0]} instead of {others[0]})" if digests and others else ""
        found.append(f"Node {each['node']} has erred{errors}: {str(each.get('reason')).rstrip('.')}{evidence}.")
    if not found and finding.verdict is CaseVerdict.NOBODY_NAMED:
        found.append(f"Nobody can be named: {_full_stop(finding.reason or 'no event says who it was')}")
    return found


def _full_stop(text: str) -> str:
    return f"{text.rstrip('.')}."


def _ranks(record: Record) -> str:
    ranks = list(record.get("ranks") or ())
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8:,} more" if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"
