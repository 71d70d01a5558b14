"""Decisions about protection do not go back and forth, and evictions are prudent: rule 28, protection changes slowly
and within bounds, and rule 29, ill nodes leave one at a time.

It looks at the events of each coordinator, by that coordinator's own clock, and at what the coordinator was told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deadpool.protocol.causes import CHANGES
from deadpool.protocol.features.adaptation.coordinator.adaptation import UNGUARDED
from deadpool.protocol.features.adaptation.coordinator.chosen_scheme import SCHEME
from deadpool.protocol.features.adaptation.coordinator.protection import Protection
from deadpool.protocol.health import CERTAIN, LIKELY, gravest
from deadpool.protocol.schemes import Scheme
from deadpool_lab.sim.checking.violation import fail

if TYPE_CHECKING:
    from deadpool.protocol.coordinator.core import Coordinator
    from deadpool.protocol.coordinator.membership.members import Member
    from deadpool.protocol.messages import Sign
    from deadpool_lab.sim.hosts import Host


@dataclass(slots=True)
class ProtectionLog:
    """The changes of one coordinator."""

    dwell_s: float
    within_s: float
    times: list[float] = field(default_factory=list)
    by_subject: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    is_overruled: bool = False  # a person has asked for a scheme

    def add(self, subject: str, value: str, now: float, before: str = UNGUARDED) -> None:
        """`before` is what held before the first change."""
        self.times.append(now)
        recent = [at for at in self.times if now - at < self.within_s]
        if len(recent) > CHANGES:
            fail("rule 28", f"{len(recent)} changes of protection within {self.within_s:g} s, {CHANGES} are allowed")
        history = self.by_subject.setdefault(subject, [])
        earlier = history[-2][1] if len(history) > 1 else before
        if history and value == earlier and now - history[-1][0] < self.dwell_s:
            after_s = now - history[-1][0]
            fail("rule 28", f"{subject} is {value}, {history[-1][1]}, and {value} again after {after_s:.1f} s")
        history.append((now, value))

    def add_scheme(self, scheme: Scheme, now: float, asked: Scheme) -> None:
        if self.is_overruled:
            fail("rule 28", f"the job has chosen {scheme}, and a person had asked for another scheme")
        self.add(SCHEME, str(scheme), now, before=str(asked))

    def on_asked(self, scheme: Scheme | None) -> None:
        """Takes note that a person asked for a scheme. None means that the job is to choose again, and may do so at
        once.
        """
        self.is_overruled = scheme is not None
        self.by_subject.pop(SCHEME, None)

    def on_found(self, scheme: Scheme, now: float) -> None:
        """A successor has found this scheme."""
        self.by_subject[SCHEME] = [(now, str(scheme))]


class ProtectionChecker:
    def __init__(self) -> None:
        self._logs: dict[int, ProtectionLog] = {}  # by coordinator
        self._evicting: str | None = None
        self.changes = 0
        self.was_asked = False  # a person has asked some coordinator for a scheme

    def on_event(self, host: Host, what: str, detail: dict[str, Any]) -> None:
        match what:
            case "protection":
                self.changes += 1
                self._on_change(host, detail["node"], detail["change"])
            case "eviction":
                self._check_eviction(host.coordinator, detail["node"])
                self._evicting = detail["node"]
            case "left" | "spare_lost" | "drain_failed" | "drain_refused" | "fault" | "took_over":
                self._evicting = None

        if what == "took_over" and host.coordinator.settings.adaptive is not None:
            self._log_of(host).on_found(host.coordinator.scheme, host.clock.now)

    def on_scheme_asked(self, host: Host, scheme: Scheme | None) -> None:
        """Takes note that a scheme was asked of a coordinator, which may have refused it."""
        if host.coordinator.settings.adaptive is not None and scheme in (None, host.coordinator.scheme):
            self.was_asked = True
            self._log_of(host).on_asked(scheme)

    def _on_change(self, host: Host, node: str | None, value: str) -> None:
        if node is not None or not _is_scheme(value):
            self._log_of(host).add(node or "the job", value, host.clock.now)
            return
        scheme, asked = Scheme.parse(value), Scheme(copies=host.coordinator.layout.holders)
        self._check_scheme(host.coordinator, scheme, asked)
        self._log_of(host).add_scheme(scheme, host.clock.now, asked)

    def _check_scheme(self, coordinator: Coordinator, scheme: Scheme, asked: Scheme) -> None:
        bounds = coordinator.settings.adaptive
        if bounds is None or scheme not in (asked, bounds.coded):
            fail("rule 28", f"the job chooses {scheme}, which is not within {bounds}")
        if scheme.losses < asked.losses:
            fail("rule 28", f"the job chooses {scheme}, which survives fewer losses than {asked}")

    def _log_of(self, host: Host) -> ProtectionLog:
        bounds = host.coordinator.settings.adaptive
        if bounds is None:
            fail("rule 28", "protection has changed, and nobody allowed it")
        assert bounds is not None
        coordinator = host.coordinator
        if id(coordinator) not in self._logs:
            self._logs[id(coordinator)] = ProtectionLog(bounds.dwell_s, bounds.changes_within_s)
        return self._logs[id(coordinator)]

    def _check_eviction(self, coordinator: Coordinator, node: str) -> None:
        """Rule 29 (ill nodes leave one at a time)."""
        if self._evicting is not None:
            fail("rule 29", f"{node} is evicted while {self._evicting} still leaves")
        members = coordinator.members.values()
        spares = [m.node for m in members if m.is_spare and not (m.quarantined or m.doubted)]
        signs = _signs(coordinator, coordinator.members[node])
        if not spares or (len(spares) < 2 and gravest(signs) < CERTAIN):
            fail("rule 29", f"{node} is evicted for {signs}, and {spares} are the spares that are left")
        own = [sign.kind for sign in signs if sign.grade >= LIKELY and not self._is_shared(coordinator, sign.kind)]
        if not own:
            fail("rule 29", f"{node} is evicted for {signs}, which most nodes show")

    def _is_shared(self, coordinator: Coordinator, kind: str) -> bool:
        seated = [m for m in coordinator.members.values() if m.position is not None]
        showing = [m for m in seated if any(sign.kind == kind for sign in _signs(coordinator, m))]
        return len(showing) > 1 and 2 * len(showing) > len(seated)


def _signs(coordinator: Coordinator, member: Member) -> tuple[Sign, ...]:
    """The signs that the node shows, as it has told."""
    protection = coordinator.features.find(Protection)
    return protection.health_of(member).signs if protection is not None else ()


def _is_scheme(value: str) -> bool:
    """Tells whether the value is a scheme: else it is an interval, or what most nodes show."""
    return value.startswith(("copies=", "rs("))
