"""What a node's heartbeat says.

`WorkTimes`: how long a node's ranks work in a step, without the time in which they wait for other ranks.

What a trainer measures of a single step is a rough estimate, because it samples. So steps are put together into
spans of at least SPAN_S, and the median of the last spans is reported: one long step, or one bad sample, does not
move it.

`OfRank`, `DeltaReport` and `Heartbeats`: a node's heartbeat: when it is due, and what it reports of the node's
ranks: steps, pauses, costs, work.

A heartbeat comes every second from every node, so figures are sent again only when they have changed.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from deadpool.protocol.agent.copies.capture_costs import CaptureCosts
from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.trainers import Trainer
from deadpool.protocol.identity import Schedule
from deadpool.protocol.inputs import Activity
from deadpool.protocol.messages import (
    WAITS_FOR_PEERS,
    CaptureCostReport,
    Heartbeat,
    Missed,
    Settings,
    SlotReport,
    Stepped,
    WorkTime,
)

SPAN_S = 2.0
WINDOW = 12
ENOUGH = 3
"""The median is over at most WINDOW spans, and is not reported of fewer than ENOUGH."""


@dataclass(slots=True)
class _Span:
    steps: int = 0
    step_s: float = 0.0
    waited_s: float = 0.0


@dataclass(slots=True)
class _RankWorkTime:
    open: _Span = field(default_factory=_Span)
    step_s: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    own_s: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def add(self, step_s: float, waited_s: float) -> None:
        span = self.open
        span.steps += 1
        span.step_s += step_s
        span.waited_s += waited_s
        if span.step_s >= SPAN_S:
            self.step_s.append(span.step_s / span.steps)
            self.own_s.append(max(0.0, span.step_s - span.waited_s) / span.steps)
            self.open = _Span()


class WorkTimes:
    def __init__(self) -> None:
        self._ranks: dict[int, _RankWorkTime] = {}

    def clear(self) -> None:
        """Forgets all times at a fence: other nodes may take these ranks."""
        self._ranks.clear()

    def on_stepped(self, rank: int, news: Stepped) -> None:
        if news.waited_s is not None:
            self._ranks.setdefault(rank, _RankWorkTime()).add(news.step_s, news.waited_s)

    def of_ranks(self) -> tuple[WorkTime, ...]:
        return tuple(
            WorkTime(rank=rank, step_s=statistics.median(work.step_s), own_s=statistics.median(work.own_s))
            for rank, work in self._ranks.items()
            if len(work.own_s) >= ENOUGH
        )


TOLERANCE = 0.05
"""The share by which a figure has to differ from the one that was sent."""

IDLE_S = 2.0
"""A rank is reported as idle after so long: a step contains many short waits."""


class OfRank(Protocol):
    @property
    def rank(self) -> int: ...


T = TypeVar("T", bound=OfRank)


class DeltaReport(Generic[T]):
    """Reports one item per rank, and each again only when its `figures` have changed."""

    def __init__(self, figures: Callable[[T], tuple[float | None, ...]]) -> None:
        self._figures = figures
        self._sent: dict[int, tuple[float | None, ...]] = {}

    def reset(self) -> None:
        """The receiver has forgotten what was sent, or is another one."""
        self._sent.clear()

    def changed(self, items: Iterable[T]) -> tuple[T, ...]:
        fresh = []
        for item in items:
            rank, figures = item.rank, self._figures(item)
            if not _is_close(self._sent.get(rank), figures):
                self._sent[rank] = figures
                fresh.append(item)
        return tuple(fresh)


def _is_close(before: tuple[float | None, ...] | None, now: tuple[float | None, ...]) -> bool:
    if before is None:
        return False
    return all(
        one == other or (one is not None and other is not None and abs(one - other) <= TOLERANCE * abs(one))
        for one, other in zip(before, now, strict=True)
    )


def _figures(costs: CaptureCostReport) -> tuple[float | None, ...]:
    """What is measured is reported again when it has changed by as much as it is uncertain."""
    share, error = (costs.overhead.share, costs.overhead.error) if costs.overhead is not None else (None, None)
    in_errors = None if share is None or error is None else float(round(share / max(error, 1e-9)))
    waits = (costs.stall_s, costs.stall_error_s)
    commits, sends = (costs.commit_s, costs.commit_least_s), (costs.send_s, costs.send_least_s)
    return (costs.every, costs.step_s, *waits, *commits, *sends, in_errors, error)


class Heartbeats:
    def __init__(self, state: AgentState) -> None:
        self._state = state
        self.capture_costs = CaptureCosts()
        self._work_times = WorkTimes()
        self._sent_costs = DeltaReport[CaptureCostReport](_figures)
        self._sent_slots: SlotReport | None = None
        self._sent_work = DeltaReport[WorkTime](lambda work: (work.step_s, work.own_s))
        self.due: float | None = None  # the next heartbeat

    def begin(self, settings: Settings, now: float) -> None:
        """A coordinator that has just welcomed this node has been sent nothing yet."""
        self.due = now + settings.heartbeat_s
        self._reset_reports()

    def fence(self, now: float) -> None:
        """The acknowledgement is a sign of life as well: one heartbeat is left out, so that a coordinator of thousands
        of nodes receives acknowledgements first."""
        settings = self._state.settings
        if settings is not None and self.due is not None:
            self.due = min(self.due, now + settings.heartbeat_s) + settings.heartbeat_s
        self.capture_costs.clear()
        self._work_times.clear()
        self._reset_reports()

    def _reset_reports(self) -> None:
        self._sent_costs.reset()
        self._sent_work.reset()
        self._sent_slots = None

    def on_plan(self, schedule: Schedule) -> None:
        self.capture_costs.begin(schedule)

    def reschedule(self, schedule: Schedule) -> None:
        self.capture_costs.begin(schedule)
        self._sent_costs.reset()

    # --- figures -----------------------------------------------------------------------------------------------------

    def on_stepped(self, rank: int, message: Stepped, now: float) -> None:
        self.capture_costs.on_stepped(rank, message, now)
        self._work_times.on_stepped(rank, message)

    def on_missed(self, rank: int, message: Missed) -> None:
        self.capture_costs.on_missed(rank, message)

    def on_sent(self, rank: int, holder: str, seconds: float) -> None:
        self.capture_costs.on_sent(rank, holder, seconds)

    def on_committed(self, number: int, now: float) -> None:
        self.capture_costs.on_committed(number, now)

    # --- sending -----------------------------------------------------------------------------------------------------

    def send_if_due(self, now: float) -> bool:
        """Whether one was due."""
        settings = self._state.settings
        if self.due is None or now < self.due or settings is None:
            return False
        self.due = now + settings.heartbeat_s
        self._send(now)
        return True

    def _is_idle(self, trainer: Trainer, now: float) -> bool:
        """Tells whether a trainer is idle, which it is not if something outside the job may let it go on."""
        if trainer.activity in (Activity.ACTIVE, Activity.OUTSIDE) or trainer.waits_for:
            return False
        return now - trainer.activity_changed >= IDLE_S

    def _send(self, now: float) -> None:
        state = self._state
        costs = self.capture_costs.of_ranks()
        state.copies.growth.on_costs(costs)
        in_loop = [(rank, t) for t in state.trainers.seated() if t.has_state for rank in t.ranks]
        state.tell_coordinator(
            Heartbeat(
                generation=state.current.generation,
                steps=tuple((rank, trainer.step) for rank, trainer in in_loop),
                paused=tuple((rank, trainer.paused) for rank, trainer in in_loop if trainer.paused is not None),
                costs=self._sent_costs.changed(costs),
                slots=self._changed_slots(),
                work_times=self._sent_work.changed(self._work_times.of_ranks()),
                waiting=tuple(rank for rank, trainer in in_loop if trainer.waits_for == WAITS_FOR_PEERS),
                idle=tuple(rank for rank, trainer in in_loop if self._is_idle(trainer, now)),
            )
        )

    def _changed_slots(self) -> SlotReport | None:
        before, self._sent_slots = self._sent_slots, self._state.copies.growth.report()
        return self._sent_slots if self._sent_slots != before else None
