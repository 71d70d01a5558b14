"""What was found of a script that is not exact: said once per kind, and with `--on-inexact stop` the end of the job.

Guards, the sandbox of files and the exactness audit report here. A report never raises, because it may come in the
middle of a step; `raise_if_to_stop` does, between two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deadpool.errors import Inexact
from deadpool.host.notes import note
from deadpool.trainer.guards.rules import Rule

if TYPE_CHECKING:
    from deadpool.trainer.process.session import Session

STOP = "stop"


@dataclass(frozen=True, slots=True)
class Finding:
    """`found` is a sentence about this script. The remedy is that of the rule, where no better one is known."""

    rule: Rule
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.found} {self.remedy} (docs/exactness.md, {self.rule})"


class Findings:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._said: set[tuple[Rule, str]] = set()
        self._first: Finding | None = None

    def report(self, rule: Rule, found: str, *, remedy: str = "", step: int | None = None, kind: str = "") -> None:
        """Says it once. One rule may have several kinds: each is said."""
        if (rule, kind) in self._said:
            return
        self._said.add((rule, kind))
        finding = Finding(rule, found, remedy or rule.remedy)
        self._first = self._first or finding
        self._session.emit("inexact_script", step=step, rule=str(rule), found=finding.found, remedy=finding.remedy)
        note(f"NOT EXACT after a fault: {finding}")

    def tell_carried(self, names: list[str]) -> None:
        """The loop hands plain values on in variables. What for cannot be seen, so this ends no job."""
        self._session.emit("carried_variables", names=", ".join(names), remedy=Rule.STATE_IN_VARIABLES.remedy)

    def raise_if_to_stop(self) -> None:
        """Inexact: something was found, and the job is to end by it. Called between two steps."""
        assert self._session.settings is not None
        if self._first is not None and self._session.settings.on_inexact == STOP:
            raise Inexact(str(self._first))
