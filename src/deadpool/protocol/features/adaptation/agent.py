"""Which signs of illness this node shows, from what its shell samples, and when the coordinator is told.

The coordinator is told beside a heartbeat, and only what has changed: a sound node says nothing, so thousands of them
cost nothing. A sign stays for the window that the job watches, or until its figure has been low for a while.
"""

from __future__ import annotations

from collections.abc import Iterable

from deadpool.protocol.agent.copies.slots import RankSlots
from deadpool.protocol.agent.seams import AgentCore, AgentPart
from deadpool.protocol.health import COUNTERS, GAUGES, REPEATS, CounterRule, GaugeRule, HealthSample
from deadpool.protocol.inputs import FeatureInput, HealthSampled
from deadpool.protocol.messages import Health, Sign
from deadpool.protocol.messages.progress import DETAIL_AT_MOST, SIGNS_AT_MOST

WINDOW_S = 600.0
"""Where the job does not say another one."""
PARTS = 10
"""The parts of the window. Errors within one part are one episode, and a gauge has to be low for one part to count as
low.
"""
TOLERANCE = 0.2
"""The share by which figures of memory have to change to be told again."""


class HealthMonitor(AgentPart):
    def __init__(self, core: AgentCore) -> None:
        self._state = core.state
        self._sample = HealthSample()
        self._counted: dict[str, int] = {}
        self._episodes: dict[str, list[float]] = {}  # by kind: when each began
        self._high: dict[str, float] = {}  # gauges with a sign: when they were last high
        self._high_once: set[str] = set()  # gauges that were high at the last look only
        self._sent: Health | None = None

    def on_welcome(self) -> None:
        """This coordinator has been told nothing."""
        self._sent = None

    @property
    def window_s(self) -> float:
        settings = self._state.settings
        return settings.adaptive.dwell_s if settings is not None and settings.adaptive is not None else WINDOW_S

    # --- what the shell has found ------------------------------------------------------------------------------------

    def on_input(self, input: FeatureInput, now: float) -> None:
        if isinstance(input, HealthSampled):
            self._on_sample(input.sample, now)

    def _on_sample(self, sample: HealthSample, now: float) -> None:
        self._sample = sample
        for rule in COUNTERS:
            self._count(rule, sample.counters.get(rule.kind, 0), now)
        for gauge in GAUGES:
            if (value := sample.gauges.get(gauge.kind)) is not None:
                self._look_at(gauge, value, now)

    def _count(self, rule: CounterRule, total: int, now: float) -> None:
        grown, self._counted[rule.kind] = total - self._counted.get(rule.kind, 0), total
        if grown < rule.episode:
            return
        episodes = self._episodes.setdefault(rule.kind, [])
        if not episodes or now - episodes[-1] >= self.window_s / PARTS:
            episodes.append(now)

    def _look_at(self, rule: GaugeRule, value: float, now: float) -> None:
        """One high figure may be chance: a sign needs two in a row."""
        shown = rule.kind in self._high
        if not rule.is_high(value, shown=shown):
            self._high_once.discard(rule.kind)
        elif shown or rule.kind in self._high_once:
            self._high[rule.kind] = now
        else:
            self._high_once.add(rule.kind)

    # --- what follows ------------------------------------------------------------------------------------------------

    def signs(self, now: float) -> tuple[Sign, ...]:
        """The gravest first."""
        self._forget_what_is_over(now)
        found = [self._counter_sign(rule) for rule in COUNTERS if self._episodes.get(rule.kind)]
        found += [self._sign(rule.kind, rule.grade, 1) for rule in GAUGES if rule.kind in self._high]
        return tuple(sorted(found, key=lambda sign: -sign.grade)[:SIGNS_AT_MOST])

    def _forget_what_is_over(self, now: float) -> None:
        window_s = self.window_s
        self._episodes = {kind: [at for at in ats if now - at < window_s] for kind, ats in self._episodes.items()}
        self._high = {kind: at for kind, at in self._high.items() if now - at < window_s / PARTS}

    def _counter_sign(self, rule: CounterRule) -> Sign:
        count = len(self._episodes[rule.kind])
        return self._sign(rule.kind, rule.repeated if count >= REPEATS else rule.first, count)

    def _sign(self, kind: str, grade: int, count: int) -> Sign:
        return Sign(kind=kind, grade=grade, count=count, detail=self._sample.details.get(kind, "")[:DETAIL_AT_MOST])

    # --- the coordinator is told -------------------------------------------------------------------------------------

    def on_heartbeat(self, now: float) -> None:
        """The coordinator is told what has changed."""
        health = self._health(now)
        if self._sent is None and not health.signs and not health.copies_bytes:
            return  # a coordinator takes a node of which it has heard nothing for sound
        if self._sent is None or _differ(self._sent, health):
            self._sent = health
            self._state.tell_coordinator(health)

    def _health(self, now: float) -> Health:
        settings, copies = self._state.settings, self._state.copies
        if settings is None or settings.adaptive is None:
            return Health(signs=self.signs(now))  # no decision would look at its memory
        own, held = _bytes(copies.own.values()), _bytes(copies.kept_for_others)
        return Health(
            signs=self.signs(now),
            memory_bytes=self._sample.memory_bytes,
            available_bytes=self._sample.available_bytes,
            copies_bytes=own + held,
            own_bytes=own,
        )


def _bytes(slots: Iterable[RankSlots]) -> int:
    return sum(slot.geometry.slot_bytes for each in slots for slot in each.by_ref.values())


def _differ(before: Health, now: Health) -> bool:
    """What a source says of an error in its own words makes no difference."""
    if [(s.kind, s.grade, s.count) for s in before.signs] != [(s.kind, s.grade, s.count) for s in now.signs]:
        return True
    pairs = (
        (before.memory_bytes, now.memory_bytes),
        (before.available_bytes, now.available_bytes),
        (before.copies_bytes, now.copies_bytes),
        (before.own_bytes, now.own_bytes),
    )
    return any(abs(one - other) > TOLERANCE * max(one, other) for one, other in pairs)
