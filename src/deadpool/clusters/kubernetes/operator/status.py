"""What a DeadPoolJob shows, from what its coordinator says. Pure."""

from __future__ import annotations

from typing import Any

from deadpool.clusters.kubernetes.job_state import COMPLETED

PHASES = {"forming": "Starting", "running": "Running", "salvaging": "Failing", "ended": "Ending"}
RECOVERING = "Recovering"
"""All other phases of a coordinator are parts of a recovery."""
WAITING = "Waiting"
"""No coordinator leads: none has started yet, or another one is being elected."""
INVALID = "Invalid"
"""The spec cannot work; the reason says why."""


def described(answer: dict[str, Any], nodes_wanted: int) -> dict[str, Any]:
    """The fields of the status that change while the job runs."""
    active = sum(node["role"] == "active" for node in answer["nodes"])
    shown = {
        "phase": PHASES.get(answer["phase"], RECOVERING),
        "step": answer["step"],
        "watermark": answer["watermark"],
        "nodes": f"{active}/{nodes_wanted}",
        "spares": answer["spares"],
        "reason": answer["cause"],
        "lastFault": answer.get("last_fault"),
    }
    return {name: value for name, value in shown.items() if value not in (None, "")}


def ended(outcome: str, reason: str) -> dict[str, Any]:
    return {"phase": "Completed" if outcome == COMPLETED else "Failed", "reason": reason}


def changes(shown: dict[str, Any], before: dict[str, Any], *, due: bool) -> dict[str, Any]:
    """What is to be written. Steps alone are written only now and then (`due`): each write costs the API server a
    revision of the object."""
    changed = {name: value for name, value in shown.items() if before.get(name) != value}
    return changed if due or set(changed) - {"step", "watermark"} else {}
