"""Decisions about protection do not go back and forth, and evictions are prudent: rule 28, protection changes slowly
and within bounds, and rule 29, ill nodes leave one at a time.

It looks at the events of each coordinator, by that coordinator's own clock, and at what the coordinator was told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deadpool.protocol.adaptive_bounds import CHANGES
from deadpool.protocol.coordinator.adaptation import UNGUARDED
from deadpool.protocol.health import CERTAIN, LIKELY, gravest
from deadpool.sim.violation import fail

if TYPE_CHECKING:
    from deadpool.protocol.coordinator.core import Coordinator
    from deadpool.sim.hosts import Host


@dataclass(slots=True)
class ProtectionLog:
    """The changes of one coordinator."""

    dwell_s: float
    within_s: float
    times: list[float] = field(default_factory=list)
    by_subject: dict[str, list[tuple[float, str]]] = field(default_factory=dict)

    def add(self, subject: str, value: str, now: float) -> None:
        self.times.append(now)
        recent = [at for at in self.times if now - at < self.within_s]
        if len(recent) > CHANGES:
            fail("rule 28", f"{len(recent)} changes of protection within {self.within_s:g} s, {CHANGES} are allowed")
        history = self.by_subject.setdefault(subject, [])
        earlier = history[-2][1] if len(history) > 1 else UNGUARDED
        if history and value == earlier and now - history[-1][0] < self.dwell_s:
            after_s = now - history[-1][0]
            fail("rule 28", f"{subject} is {value}, {history[-1][1]}, and {value} again after {after_s:.1f} s")
        history.append((now, value))


class ProtectionChecker:
    def __init__(self) -> None:
        self._logs: dict[int, ProtectionLog] = {}  # by coordinator
        self._evicting: str | None = None
        self.changes = 0

    def on_event(self, host: Host, what: str, detail: dict[str, Any]) -> None:
        match what:
            case "protection":
                self.changes += 1
                self._log_of(host.coordinator).add(detail["node"] or "the job", detail["change"], host.clock.now)
            case "eviction":
                self._check_eviction(host.coordinator, detail["node"])
                self._evicting = detail["node"]
            case "left" | "spare_lost" | "drain_failed" | "drain_refused" | "fault" | "took_over":
                self._evicting = None

    def _log_of(self, coordinator: Coordinator) -> ProtectionLog:
        bounds = coordinator.settings.adaptive
        if bounds is None:
            fail("rule 28", "protection has changed, and nobody allowed it")
        assert bounds is not None
        return self._logs.setdefault(id(coordinator), ProtectionLog(bounds.dwell_s, bounds.changes_within_s))

    def _check_eviction(self, coordinator: Coordinator, node: str) -> None:
        """Rule 29 (ill nodes leave one at a time)."""
        if self._evicting is not None:
            fail("rule 29", f"{node} is evicted while {self._evicting} still leaves")
        members = coordinator.members.values()
        spares = [m.node for m in members if m.is_spare and not (m.quarantined or m.looks_ill)]
        signs = coordinator.members[node].health.signs
        if not spares or (len(spares) < 2 and gravest(signs) < CERTAIN):
            fail("rule 29", f"{node} is evicted for {signs}, and {spares} are the spares that are left")
        own = [sign.kind for sign in signs if sign.grade >= LIKELY and not self._is_shared(coordinator, sign.kind)]
        if not own:
            fail("rule 29", f"{node} is evicted for {signs}, which most nodes show")

    def _is_shared(self, coordinator: Coordinator, kind: str) -> bool:
        seated = [m for m in coordinator.members.values() if m.position is not None]
        showing = [m for m in seated if any(sign.kind == kind for sign in m.health.signs)]
        return len(showing) > 1 and 2 * len(showing) > len(seated)
