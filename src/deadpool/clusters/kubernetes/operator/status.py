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


SPARES = "spares"
"""The only field of a job whose change is followed."""


def changes_without_effect(made_from: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Fields of the spec that were changed since the job's objects were made, as a sentence."""
    fields = {*made_from, *wanted} - {SPARES}
    if changed := sorted(name for name in fields if made_from.get(name) != wanted.get(name)):
        return f"changed without effect: {', '.join(changed)} (only spares can be: delete the job and make it anew)"
    return ""


def described(answer: dict[str, Any], nodes_wanted: int, remark: str = "") -> dict[str, Any]:
    """The fields of the status that change while the job runs. A remark is shown in place of the cause."""
    active = sum(node["role"] == "active" for node in answer["nodes"])
    shown = {
        "phase": PHASES.get(answer["phase"], RECOVERING),
        "step": answer["step"],
        "watermark": answer["watermark"],
        "nodes": f"{active}/{nodes_wanted}",
        "spares": answer["spares"],
        "reason": remark or answer["cause"],
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
