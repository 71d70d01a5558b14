"""Reads the recoveries of a run from its events: the cause of each one, its phases and how long each phase took. And
says what the log of events lacks, for whoever reads it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from deadpool.events.event import causes, story

Record = dict[str, Any]

MILESTONES = ("fault", "fenced", "planned", "prepared", "go")
PHASES = ("detect", "unwind", "plan", "prepare", "connect", "redo")
"""detect ends when the fault is known, unwind when every survivor is at rest, plan when the plan is made, prepare when
every rank is built and loaded, connect when all groups are rebuilt, redo when every rank has done its first step."""


EVENTS, LOG_LINES = "events", "lines of trainers' logs"
"""What waits for a disk, as a status names it."""


def unwritten(status: Record | None, *, only: str | None = EVENTS) -> list[str]:
    """What the run folder lacks, because a disk does not take it or did not: a sentence each. `status` is what the
    coordinator answered; `only` leaves out what is no event. A coordinator of an older version does not tell."""
    found = []
    for each in (status or {}).get("storage", ()):
        if only in (None, each["what_waits"]):
            where = f" of node {each['node']}" if each["node"] else ""
            dropped = f", {each['dropped']} were dropped" if each["dropped"] else ""
            found.append(
                f"{each['what_waits']}{where} are not written: {each['reason']}; {each['waiting']} in memory{dropped}; "
                "what reads the run folder (top, dashboard, story, report) does not show them yet"
            )
    for each in (status or {}).get("dropped", ()):
        if only in (None, each["what"]):
            where = f" of node {each['node']}" if each["node"] else ""
            found.append(f"{each['dropped']} {each['what']}{where} are lost: a disk did not take them for too long")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    cause: str
    began: float  # when the fault happened if that is known, else when it was detected
    fault: Record
    resume_step: int
    lost_steps: int
    phases_s: dict[str, float]
    first_step_s: float | None  # from the fault until every rank has done a step that began after it
    records: tuple[Record, ...]


def recoveries(records: list[Record]) -> list[Recovery]:
    """Returns all completed recoveries in order. A recovery that was itself interrupted by a fault is reported with the
    last generation that it took."""
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
    began = float(injection["t"]) if injection else began_at(fault)
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


def began_at(fault: Record) -> float:
    """A coordinator that takes over sees the loss of a node later than the node was lost."""
    return float(fault["t"]) - float(fault.get("since_s") or 0.0)


def _milestone(record: Record) -> str:
    """A handover takes the place of the fault where a node leaves on purpose."""
    return "fault" if record["what"] in ("handover", "reconfiguration") else str(record["what"])


def _injection_of(records: Iterable[Record], fault: Record) -> Record | None:
    """Finds the record that an injected fault left when it was injected: its detection is measured from there."""
    found = None
    for record in records:
        if record is fault:
            break
        if record["what"] in ("signal_sent", "injected") and _same_place(record, fault):
            found = record
        elif record["what"] == "fault" and (_is_hang(fault) or set(record["ranks"]) & set(fault["ranks"])):
            found = None  # the injection led to this earlier fault
    return found


def _same_place(injection: Record, fault: Record) -> bool:
    return _is_hang(fault) or injection.get("node") == fault.get("node") or injection.get("rank") in fault["ranks"]


def _is_hang(fault: Record) -> bool:
    """In a hang no rank is lost, so the last injection anywhere may be what all ranks wait for."""
    return not fault["ranks"]
