"""The result of a run as one JSON object, with what each kind of fault cost. No I/O."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from deadpool_lab.chaos.comparison import ComparisonResult

Record = dict[str, Any]


def summary(
    results: Sequence[ComparisonResult], *, seed: int, asked: int, network: str, disk: str, left_behind: list[str]
) -> Record:
    faults = [fault for result in results for fault in result.faults]
    healed = [fault for fault in faults if "recovery_s" in fault]
    return {
        "bit_identical": bool(results) and all(result.bit_identical for result in results),
        "seed": seed,
        "asked": asked,
        "hung": sum(result.hung for result in results),
        "network": network,
        "disk": disk,
        "jobs": [
            {
                "layout": v.layout,
                "steps": v.steps,
                "took_s": v.took_s,
                "faults": len(v.faults),
                "events": v.events,
                "problems": v.problems,
            }
            for v in results
        ],
        "left_behind": left_behind,
        "first_step_s": costs_by_kind(healed, "first_step_s"),
        "recovery_s": costs_by_kind(healed, "recovery_s"),
        "decisions": {v.layout: v.decisions for v in results},
        "faults": faults,
    }


def costs_by_kind(healed: Sequence[Record], cost: str) -> dict[str, Record]:
    return {kind: _costs(healed, kind, cost) for kind in sorted({fault["kind"] for fault in healed})}


def _costs(healed: Sequence[Record], kind: str, cost: str) -> Record:
    times = [fault[cost] for fault in healed if fault["kind"] == kind]
    return {"median": round(statistics.median(times), 3), "worst": max(times), "count": len(times)}


def is_good(figures: Record) -> bool:
    return bool(
        figures["bit_identical"]
        and not figures["hung"]
        and not figures["left_behind"]
        and len(figures["faults"]) == figures["asked"]
    )
