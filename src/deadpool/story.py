"""The story of a recovery, read from events: which phase took how long, and who did what because of which cause."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from deadpool.events import causes, story

Record = dict[str, Any]

MILESTONES = ("fault", "fenced", "planned", "prepared", "go")
PHASES = ("detect", "unwind", "plan", "prepare", "connect", "redo")
"""detect: until the fault is known; unwind: until every survivor is at rest; plan; prepare: until every rank is built
and loaded; connect: until all groups are made anew; redo: until every rank has done the first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    cause: str
    began: float  # when the fault happened, where that is known, else when it was seen
    fault: Record
    resume_step: int
    lost_steps: int
    phases_s: dict[str, float]
    first_step_s: float | None  # from the fault until every rank has done a step begun after it
    records: tuple[Record, ...]


def recoveries(records: list[Record]) -> list[Recovery]:
    """All completed ones, in order. A fault during a recovery is told with the last generation that it took."""
    found = (_recovery(records, cause) for cause in causes(records) if cause != "start")
    return [recovery for recovery in found if recovery is not None]


def _recovery(records: list[Record], cause: str) -> Recovery | None:
    own = story(records, cause)
    at = {_milestone(r): float(r["t"]) for r in reversed(own) if _milestone(r) in MILESTONES}
    if len(at) < len(MILESTONES):
        return None
    fault = next(r for r in own if _milestone(r) == "fault")
    plan = next(r for r in own if r["what"] == "planned")
    resumed = [float(r["t"]) for r in own if r["what"] == "resumed"]
    injection = _injection_of(records, fault) if fault["what"] == "fault" else None
    began = float(injection["t"] if injection else fault["t"])
    times = [began, *(at[what] for what in MILESTONES)] + ([max(resumed)] if resumed else [])
    phases = {name: later - earlier for name, earlier, later in zip(PHASES, times, times[1:], strict=False)}
    return Recovery(
        cause=cause,
        began=began,
        fault=fault,
        resume_step=plan["step"],
        lost_steps=plan["lost_steps"],
        phases_s=phases,
        first_step_s=max(resumed) - began if resumed else None,
        records=(*([injection] if injection else []), *own),
    )


def _milestone(record: Record) -> str:
    """Where a node leaves on purpose, that takes the place of a fault."""
    return "fault" if record["what"] == "handover" else str(record["what"])


def _injection_of(records: Iterable[Record], fault: Record) -> Record | None:
    """An injected fault was recorded when it was injected: detection is counted from there."""
    found = None
    for record in records:
        if record is fault:
            break
        if record["what"] in ("signal_sent", "injected") and _same_place(record, fault):
            found = record
        elif record["what"] == "fault" and (_is_hang(fault) or set(record["ranks"]) & set(fault["ranks"])):
            found = None  # that was what it led to
    return found


def _same_place(injection: Record, fault: Record) -> bool:
    return _is_hang(fault) or injection.get("node") == fault.get("node") or injection.get("rank") in fault["ranks"]


def _is_hang(fault: Record) -> bool:
    """Nobody was lost: whatever was hit last may be what everybody waits for."""
    return not fault["ranks"]
