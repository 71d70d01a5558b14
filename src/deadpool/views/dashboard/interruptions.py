"""Faults and drains as an operator counts them: what stopped training, how long, and what that makes of the job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from deadpool.events.story import MILESTONES, PHASES, Recovery, began_at, recoveries
from deadpool.views.dashboard.history import History, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    cause: str
    kind: str  # fault or drain
    began: float
    ended: float | None  # when every rank had done a new step; None: it is not over, or another fault came first
    reason: str
    node: str | None
    ranks: tuple[int, ...]
    resume_step: int | None
    lost_steps: int
    phases_s: dict[str, float]

    def facts(self) -> dict[str, Any]:
        return {
            "cause": self.cause,
            "kind": self.kind,
            "began": self.began,
            "seconds": self.ended - self.began if self.ended is not None else None,
            "reason": self.reason,
            "node": self.node,
            "ranks": list(self.ranks[:64]),
            "rank_count": len(self.ranks),
            "resume_step": self.resume_step,
            "lost_steps": self.lost_steps,
            "phases_s": self.phases_s,
        }


def interruptions(history: History) -> list[Interruption]:
    """Returns the interruptions in order. Those that are over are read as `deadpool show story` reads them."""
    records = sorted([*history.milestones, *history.resumed.values()], key=lambda each: float(each["t"]))
    complete = {each.cause: each for each in recoveries(records)}
    found: dict[str, Interruption] = {}
    for record in records:
        cause = record.get("cause")
        if record["what"] not in ("fault", "handover", "reconfiguration") or not cause or cause in found:
            continue
        known = complete.get(cause)
        found[cause] = _over(known, history.went_on.get(cause)) if known is not None else _under_way(record, records)
    return list(found.values())


def _over(recovery: Recovery, went_on: float | None) -> Interruption:
    """Where the script began anew no rank reports that it has resumed; then `went_on` is when steps were seen."""
    fault = recovery.fault
    return Interruption(
        cause=recovery.cause,
        kind=_kind(fault),
        began=recovery.began,
        ended=recovery.began + recovery.first_step_s if recovery.first_step_s is not None else went_on,
        reason=str(fault.get("reason", "")),
        node=fault.get("node"),
        ranks=tuple(fault.get("ranks", ())),
        resume_step=recovery.resume_step,
        lost_steps=recovery.lost_steps,
        phases_s=recovery.phases_s,
    )


def _under_way(fault: Record, records: Iterable[Record]) -> Interruption:
    own = [each for each in records if each.get("cause") == fault["cause"]]
    plan = next((each for each in own if each["what"] == "planned"), None)
    return Interruption(
        cause=fault["cause"],
        kind=_kind(fault),
        began=began_at(fault),
        ended=None,
        reason=str(fault.get("reason", "")),
        node=fault.get("node"),
        ranks=tuple(fault.get("ranks", ())),
        resume_step=plan["step"] if plan else None,
        lost_steps=plan["lost_steps"] if plan else 0,
        phases_s=_phases_so_far(own, float(fault["t"])),
    )


def _kind(record: Record) -> str:
    return "drain" if record["what"] in ("handover", "reconfiguration") else "fault"


def _phases_so_far(own: list[Record], began: float) -> dict[str, float]:
    """The phases that have ended."""
    at: dict[str, float] = {}
    for record in own:
        at.setdefault(str(record["what"]), float(record["t"]))
    phases, last = {}, began
    for name, milestone in zip(PHASES[1:], MILESTONES[1:], strict=False):
        if milestone not in at:
            break
        phases[name], last = at[milestone] - last, at[milestone]
    return phases
