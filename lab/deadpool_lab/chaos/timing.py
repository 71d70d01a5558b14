"""Two ways to time a run: many faults at once with short timeouts, or one at a time as a user would meet it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from deadpool.config.job_config import JobConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    step_pause_s: float  # added to each step, so that a fault can be injected within one
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the job; the others have their defaults
    hangs_s: float  # a rank that is stopped for so long is noticed
    one_by_one: bool = False
    """Each fault comes in a calm moment and lasts until the job trains without what it hit."""

    disk_s: float | None = None
    """The time that a fault of the disk lasts; None means seconds, as drawn."""

    @property
    def holders(self) -> int:
        return int(self.settings.get("holders", JobConfig().holders))

    @property
    def dwell_s(self) -> float | None:
        """The least time that a change of protection stays; None means that protection stays as it is."""
        return self.settings.get("protect_dwell_s")

    @property
    def _node_timeout_s(self) -> float:
        return float(self.settings.get("node_timeout_s", JobConfig().node_timeout_s))

    @property
    def unnoticed_s(self) -> float:
        return self._node_timeout_s / 4

    @property
    def noticed_s(self) -> float:
        return 2 * self._node_timeout_s


CROWDED = Timing(
    step_pause_s=0.25,
    hangs_s=20.0,
    settings={
        "holders": 2,
        "overhead_budget": 0.0,
        "node_timeout_s": 4.0,
        "hang_timeout_s": 10.0,
        "unwind_timeout_s": 6.0,
        "connect_timeout_s": 40.0,
        "prepare_timeout_s": 60.0,
        "isolation_timeout_s": 60.0,
    },
)
ADAPTIVE = replace(
    CROWDED,
    settings={**CROWDED.settings, "protect_at_most": "copies=3", "evict_ill": True, "protect_dwell_s": 60.0},
)
"""Protection follows the health of nodes, ten times as fast as by default: there are decisions within minutes."""
ONE_BY_ONE = Timing(step_pause_s=1.0, hangs_s=90.0, one_by_one=True)
"""Default settings and steps of a second."""
