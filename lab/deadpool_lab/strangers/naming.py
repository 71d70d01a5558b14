"""What DeadPool has said of a script, and whether it said so before the first fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_NAMING = ("inexact_script", "audit_differs")


def named_rules(events: Sequence[dict[str, Any]]) -> list[str]:
    """Each rule that was named before the first fault, once."""
    rules = []
    for event in events:
        if event["what"] == "fault":
            break
        if event["what"] in _NAMING:
            rules.append(str(event.get("rule") or event["what"]))
    return list(dict.fromkeys(rules))


PASSED, DIFFERS, NO_VERDICT = "passed", "differs", "no verdict"


def audit_verdict(events: Sequence[dict[str, Any]]) -> str:
    """Of the recovery that was played first; empty: no rank has ended for one."""
    for event in events:
        if event["what"] == "audit_passed":
            return PASSED
        if event["what"] == "audit_differs":
            return f"{DIFFERS}: {event.get('part', '')} ({event.get('rule', '')})"
    return NO_VERDICT if any(event["what"] == "audit_ends_rank" for event in events) else ""
