"""Where the coordinator calls optional features. What positions become that no node can take is a seam of its own:
`Vacancies` in `recovery/global_plan.py`.

A feature derives its part from `CoordinatorPart` and overrides what it has a say in; the rest does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from deadpool.protocol.coordinator.job import JobState
from deadpool.protocol.coordinator.leaving.drain import Drains


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorCore:
    """The parts of the coordinator that a feature may use."""

    job: JobState
    drains: Drains


class CoordinatorPart:
    def advance(self, now: float) -> None:
        """After every input, once it is known who leaves, and before a drain goes on."""
