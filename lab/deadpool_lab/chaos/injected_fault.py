"""A fault that was injected: since when, whether the job has recovered from it, and what it cost. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deadpool_lab.chaos.event_check import Span
from deadpool_lab.chaos.faults.fault import Fault, FaultContext
from deadpool_lab.chaos.status_view import StepProgress

_STEPS_ON = 3
"""Steps to be committed after the fault: one was under way, and a script that is to raise does so in the next."""

Record = dict[str, Any]


@dataclass(slots=True)
class InjectedFault:
    number: int
    fault: Fault
    hit_at: float
    at_step: int  # a step that no rank had completed then; it may have been under way
    during: str  # the phase of the job then
    beside: list[int]  # faults that were open then
    mark: int  # the version that has to be complete for a recovery
    renewed_at: float  # when it began or ended: only a status after that counts
    ended: bool = False
    healed_at: float | None = None
    costs: Record = field(default_factory=dict)

    @classmethod
    def begin(
        cls, number: int, fault: Fault, context: FaultContext, *, now: float, during: str, beside: list[int]
    ) -> InjectedFault:
        begun = context.steps.begun
        return cls(
            number=number,
            fault=fault,
            hit_at=now,
            at_step=begun,
            during=during,
            beside=beside,
            mark=begun + _STEPS_ON,
            renewed_at=now,
            ended=fault.lasts_s == 0.0,
        )

    def is_to_end(self, context: FaultContext, now: float) -> bool:
        is_over = now >= self.hit_at + self.fault.lasts_s or (self.fault.held and self._trains(context))
        return not self.ended and is_over

    def end(self, context: FaultContext, now: float) -> None:
        self.fault.end(context)
        self.ended, self.renewed_at = True, now
        self.mark = max(self.mark, context.steps.begun + _STEPS_ON)

    def has_healed(self, context: FaultContext) -> bool:
        return self.ended and self._trains(context) and self.fault.is_over(context)

    def _trains(self, context: FaultContext) -> bool:
        view = context.view
        committed = view.watermark >= self.mark and view.at > self.renewed_at
        return view.phase == "running" and view.protected and committed

    def heal(self, events: Sequence[Record], steps: StepProgress, now: float) -> None:
        self.healed_at = now
        inside = [event for event in events if self.hit_at <= event.get("t", 0.0) <= now]
        plans = [event for event in inside if event["what"] == "planned"]
        self.costs = {
            "first_step_s": round(self._first_step_at(inside, steps) - self.hit_at, 3),
            "recovery_s": round(self._ended_at(inside, steps, now) - self.hit_at, 3),
            "pause_s": round(steps.longest_pause_s(self.hit_at, now), 3),
            "plans": len(plans),
            "bad_copies_found": sum(event["what"] == "source_failed" for event in inside),
            "steps_redone": max((plan["lost_steps"] for plan in plans), default=0),
        }

    def _ended_at(self, inside: Sequence[Record], steps: StepProgress, now: float) -> float:
        """When the event came that ends its recovery, where it has one; else the first new step."""
        ends = [event["t"] for event in inside if event["what"] == self.fault.ends_with]
        if ends:
            return float(ends[0])
        if self.fault.ends_with is not None:
            return now
        return self._first_step_at(inside, steps)

    def _first_step_at(self, inside: Sequence[Record], steps: StepProgress) -> float:
        """The first completed step that began after the fault, or after the last plan. A fault in the background causes
        no plan: those that come meanwhile are because of others."""
        resumed = [event["t"] for event in inside if event["what"] == "resumed" and not self.fault.in_background]
        return float(max([steps.ends[self.at_step + 1], *resumed]))

    @property
    def span(self) -> Span:
        """Returns the time from its begin to its end; one that does not last ends when the job has recovered."""
        return Span(self.hit_at, self.renewed_at if self.fault.lasts_s else self.healed_at or self.hit_at)

    def record(self) -> Record:
        return {
            "number": self.number,
            "kind": self.fault.kind,
            "target": self.fault.described,
            "at_step": self.at_step,
            "during": self.during,
            "beside": self.beside,
            "moment": self.fault.intent.moment.value,
            "lasts_s": self.fault.lasts_s,
            **self.costs,
        }
