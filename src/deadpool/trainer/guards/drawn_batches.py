"""Finds batches that are drawn before the step that uses them: `zip(loader, job.steps(n))`, or a loop over the loader
that asks for a step inside.

Such a batch lies before the boundary, in a variable: a rank that redoes the step goes on from the position behind it.
The position of a loader is compared between the end of a step's block and the boundary that follows. A loader that was
read to its end there was an evaluation, which is part of the step before. One draw may be anything; a draw behind two
steps in a row is how the loop is written.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from deadpool.snapshot.record.record import encode
from deadpool.snapshot.state.cures import is_off
from deadpool.snapshot.state.loaders import LoaderPosition
from deadpool.trainer.guards.findings import Findings
from deadpool.trainer.guards.rules import Rule

_IN_A_ROW = 2
_FIRST_STEPS = 4
"""The position of an object that is no loader is its state_dict(), which is compared in so many steps only."""


class DrawnBatches:
    def __init__(self, findings: Findings, stateful: Mapping[str, Any]) -> None:
        self._findings = findings
        self._loaders = {name: each for name, each in stateful.items() if isinstance(each, LoaderPosition)}
        self._streams = {name: each for name, each in stateful.items() if _is_stream(each)}
        self._seen = 0
        self._left: dict[str, Hashable] = {}
        self._in_a_row: dict[str, int] = {}

    def enter_step(self, number: int) -> None:
        self._left = {}

    def leave_step(self, number: int) -> None:
        if not is_off("D9"):
            self._left = self._places()

    def at_boundary(self, number: int) -> None:
        if not self._left:
            return
        for name, place in self._places().items():
            self._compare(name, self._left[name], place, number)
        self._left = {}
        self._seen += 1

    def _compare(self, name: str, left: Hashable, place: Hashable, number: int) -> None:
        moved = place != left and not (name in self._loaders and self._loaders[name].is_at_end)
        self._in_a_row[name] = self._in_a_row.get(name, 0) + 1 if moved else 0
        if self._in_a_row[name] == _IN_A_ROW:
            self._findings.report(
                Rule.BATCH_BEFORE_STEP,
                f"{name} moves between the end of one step's block and the start of the next: the batch is drawn "
                "before the step that uses it, and would be skipped where that step is redone.",
                step=number,
            )

    def _places(self) -> dict[str, Hashable]:
        places: dict[str, Hashable] = {name: loader.place for name, loader in self._loaders.items()}
        if self._seen < _FIRST_STEPS:
            places |= {name: encode(each.state_dict(), name) for name, each in self._streams.items()}
        return places


def _is_stream(value: Any) -> bool:
    """Objects of the script that give one batch after the other, and loaders of torchdata's nodes."""
    kind = type(value)
    if isinstance(value, LoaderPosition):
        return False
    return isinstance(getattr(kind, "__next__", None), Callable) or (  # type: ignore[arg-type]
        kind.__module__.startswith("torchdata.") and hasattr(kind, "__iter__")
    )
