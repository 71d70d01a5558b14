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
