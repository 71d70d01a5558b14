"""Checker (drain): a node that leaves on purpose, or copies that are placed anew, cost no step."""

from __future__ import annotations

from typing import Any

from deadpool_lab.sim.checking.violation import fail


class DrainChecker:
    """Follows the coordinator's events. A fault or a takeover during the handover excuses steps that are redone."""

    def __init__(self) -> None:
        self._undisturbed = False

    def on_event(self, what: str, detail: dict[str, Any]) -> None:
        match what:
            case "handover" | "reconfiguration":
                self._undisturbed = True
            case "fault" | "took_over":
                self._undisturbed = False
            case "planned":
                if self._undisturbed and detail["lost_steps"]:
                    fail("drain", f"nothing failed, and {detail['lost_steps']} steps are done again")
                self._undisturbed = False
