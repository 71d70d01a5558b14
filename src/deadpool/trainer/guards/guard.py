"""The interface of a guard, what guards find, and the rules that a script has to follow.

`Guard`: a guard looks at one thing that a script may do and that no recovery can make good.

It costs nothing that can be measured: it looks at few things, in the first steps, and now and then later. All calls
come from the script's thread, in steps that count, not in dry ones. A step that is cut off is not left: the next
call is `enter_step` again.

`ScriptFinding` and `Findings`: what was found of a script that is not exact: said once per kind, and with `--on-inexact
stop` the end of the job.

Guards, the sandbox of files and the exactness audit report here. A report never raises, because it may come in the
middle of a step; `raise_if_to_stop` does, between two.

`Rule`: what a script has to do itself in order to be exact: those rows of "Up to the script" in docs/exactness.md
that are looked for.

Whoever finds that a script does otherwise names the rule, and the rule says what to do instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from deadpool.errors import Inexact
from deadpool.host.notes import note

if TYPE_CHECKING:
    from deadpool.trainer.process.session import Session


_ALWAYS_UNTIL = 4


class Guard(Protocol):
    def enter_step(self, number: int) -> None:
        """The block of the step begins."""

    def leave_step(self, number: int) -> None:
        """The block has ended without an exception. The script goes on behind it."""

    def at_boundary(self, number: int) -> None:
        """The script asks for the step after `number`, whose state has not been captured yet."""


def is_due(number: int) -> bool:
    """Whether a guard that costs something looks at this step: one of the first, or a power of two."""
    return number <= _ALWAYS_UNTIL or number & (number - 1) == 0


class Rule(StrEnum):
    STATE_IN_VARIABLES = "state_in_variables"
    BATCH_BEFORE_STEP = "batch_before_step"
    UNPROTECTED_LOADER = "unprotected_loader"
    KEPT_GRADIENTS = "kept_gradients"
    PENDING_HANDLES = "pending_handles"
    UNCOUNTED_WRITES = "uncounted_writes"
    REPLACED_OBJECTS = "replaced_objects"
    LATE_GROUPS = "late_groups"
    FILES_BEFORE_LOOP = "files_before_loop"
    FILES_FROM_LOOP = "files_from_loop"
    SERVED_STORE = "served_store"
    UNEXPLAINED = "unexplained"

    @property
    def remedy(self) -> str:
        return _REMEDIES[self]


_REMEDIES = {
    Rule.STATE_IN_VARIABLES: "Keep it in an object with state_dict() and load_state_dict(), pass that to protect(), or "
    "derive it from step.number.",
    Rule.BATCH_BEFORE_STEP: "Draw the batch inside `with step:`, or write zip(job.steps(n), loader), steps first.",
    Rule.UNPROTECTED_LOADER: "Pass the loader to protect(), call iter() after that, and draw inside `with step:`.",
    Rule.KEPT_GRADIENTS: "Accumulate inside of one step: a step of the job is one step of the optimizer.",
    Rule.PENDING_HANDLES: "Wait for the handle inside of the step that began it.",
    Rule.UNCOUNTED_WRITES: "Write to the tensor itself, in torch.no_grad(): torch does not count other writes.",
    Rule.REPLACED_OBJECTS: "Make it before protect() and write into it later, for example with copy_().",
    Rule.LATE_GROUPS: "Make the group before the loop, or in the first step.",
    Rule.FILES_BEFORE_LOOP: "Do it only `if deadpool.first_start:`, and open logs to append.",
    Rule.FILES_FROM_LOOP: "Read it only `if deadpool.first_start:`, and pass what follows from it to protect(), in an "
    "object with state_dict() and load_state_dict().",
    Rule.SERVED_STORE: "Let the store live where no trainer does, or exchange values by collectives of a group.",
    Rule.UNEXPLAINED: "Compare the step with docs/exactness.md, and report it if nothing there explains it.",
}


STOP = "stop"


@dataclass(frozen=True, slots=True)
class ScriptFinding:
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
        self._first: ScriptFinding | None = None

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that were named so far, in alphabetical order."""
        return tuple(sorted({str(rule) for rule, _ in self._said}))

    def report(self, rule: Rule, found: str, *, remedy: str = "", step: int | None = None, kind: str = "") -> None:
        """Says it once. One rule may have several kinds: each is said."""
        if (rule, kind) in self._said:
            return
        self._said.add((rule, kind))
        finding = ScriptFinding(rule, found, remedy or rule.remedy)
        self._first = self._first or finding
        self._session.emit("inexact_script", step=step, rule=str(rule), found=finding.found, remedy=finding.remedy)
        note(f"NOT EXACT after a fault: {finding}")

    def tell_carried(self, names: list[str]) -> None:
        """The loop hands plain values on in variables. What for cannot be seen, so this ends no job."""
        self._session.emit("carried_variables", names=", ".join(names), remedy=Rule.STATE_IN_VARIABLES.remedy)

    def tell_not_compared(self, names: list[str], most: int, most_of_all: int) -> None:
        self._session.emit("values_not_compared", names=", ".join(names), most=most, most_of_all=most_of_all)

    def raise_if_to_stop(self) -> None:
        """Inexact: something was found, and the job is to end by it. Called between two steps."""
        assert self._session.settings is not None
        if self._first is not None and self._session.settings.on_inexact == STOP:
            raise Inexact(str(self._first))
