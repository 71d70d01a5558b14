"""Draws the upper panel: how long each step of each rank took around a fault, from the `step_times` events of the log.

A step's time counts from the end of the step before, so the first step after a fault includes the standstill.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass

from deadpool.events.story import Record, Recovery
from deadpool.views.picture.axis import Axis, tick_words
from deadpool.views.picture.svg import Canvas

HEIGHT = 190.0
_STEPS_SHOWN = 14  # the most steps on each side
_SHARE_BEFORE = 1.2  # the time shown before a recovery is at least so many times its length


@dataclass(frozen=True, slots=True)
class StepEnd:
    t: float
    seconds: float


@dataclass(frozen=True, slots=True)
class StepSeries:
    """The steps around one recovery, by rank, in unbroken stretches."""

    by_rank: dict[int, list[list[StepEnd]]]
    usual_s: float

    def window(self, recovery: Recovery) -> tuple[float, float]:
        """Returns the time window to draw, in seconds since the fault."""
        lasted = recovery.first_step_s or 0.0
        wide = min(_STEPS_SHOWN * self.usual_s, max(_SHARE_BEFORE * lasted, 6 * self.usual_s))
        return -wide, lasted + wide


def read_steps(records: list[Record], recovery: Recovery) -> StepSeries | None:
    """Returns None if the log does not have steps both before and after the recovery."""
    ends, lost, went_on = _ends_by_rank(records), set(recovery.fault["ranks"]), _went_on(recovery)
    before = {rank: [t for t in times if t <= went_on] for rank, times in ends.items()}
    after = {rank: [t for t in times if t > went_on] for rank, times in ends.items()}
    last_ends = [times[-1] for rank, times in before.items() if times and rank not in lost]
    quiet = [each.seconds for times in before.values() for each in _steps(times)]
    if not (last_ends and quiet and any(after.values())):
        return None
    by_rank = {
        # The last step times of a lost rank are lost with its process. The other ranks ended these steps with it.
        rank: [_steps(before[rank]), _steps([max(last_ends), *after[rank]])]
        if rank in lost
        else [_steps(before[rank] + after[rank])]
        for rank in ends
    }
    return StepSeries(by_rank, statistics.median(quiet))


def _went_on(recovery: Recovery) -> float:
    return max(float(record["t"]) for record in recovery.records if record["what"] == "go")


def _steps(ends: list[float]) -> list[StepEnd]:
    return [StepEnd(later, later - earlier) for earlier, later in itertools.pairwise(ends)]


def _ends_by_rank(records: list[Record]) -> dict[int, list[float]]:
    """Returns when steps ended, in order; a step that was done again has two ends."""
    ends: dict[int, list[float]] = {}
    for record in records:
        if record["what"] == "step_times":
            took = itertools.accumulate(record["seconds"], initial=record["began"])
            ends.setdefault(record["rank"], []).extend(itertools.islice(took, 1, None))
    return {rank: sorted(times) for rank, times in sorted(ends.items())}


def draw(canvas: Canvas, steps: StepSeries, recovery: Recovery, left: float, right: float, top: float) -> None:
    bottom = top + HEIGHT
    low, high = steps.window(recovery)
    lost = set(recovery.fault["ranks"])
    shown = [
        (rank in lost, [(at, each.seconds) for each in stretch if low <= (at := each.t - recovery.began) <= high])
        for rank, stretches in steps.by_rank.items()
        for stretch in stretches
    ]
    highest = max(seconds for _, points in shown for _, seconds in points)
    x, y = Axis(low, high, left, right), Axis(0.0, 1.12 * highest, bottom, top)
    _draw_grid(canvas, x, y)
    _draw_standstill(canvas, x, top, bottom, recovery)
    canvas.line(left, y.at(steps.usual_s), right, y.at(steps.usual_s), "quiet", stroke_dasharray="4 4")
    for is_lost, points in sorted(shown, key=lambda each: each[0]):  # draws replaced ranks on top
        _draw_stretch(canvas, x, y, points, "newcomer" if is_lost else "survivor")


def _draw_grid(canvas: Canvas, x: Axis, y: Axis) -> None:
    in_s = y.high > 0.5
    for value in y.ticks(4):
        canvas.line(x.start, y.at(value), x.end, y.at(value), "rule")
        canvas.text(x.start - 8, y.at(value) + 4, tick_words(value, in_s), "quiet", size="small", anchor="end")
    canvas.text(x.start - 8, y.end - 8, "s" if in_s else "ms", "quiet", size="small", anchor="end")
    for value in x.ticks(8):
        canvas.line(x.at(value), y.start, x.at(value), y.start + 4, "quiet")
        words = f"{value:+g} s".replace("-", "−") if value else "0"
        canvas.text(x.at(value), y.start + 18, words, "quiet", size="small", anchor="middle")


def _draw_standstill(canvas: Canvas, x: Axis, top: float, bottom: float, recovery: Recovery) -> None:
    lasted = recovery.first_step_s or 0.0
    canvas.rect(x.at(0), top, x.at(lasted) - x.at(0), bottom - top, "fault", opacity=0.08)
    canvas.line(x.at(0), top - 6, x.at(0), bottom, "fault", stroke_width=1.5)
    canvas.text(x.at(0) - 6, top + 8, "fault", "fault", size="head", anchor="end")


def _draw_stretch(canvas: Canvas, x: Axis, y: Axis, points: list[tuple[float, float]], colour: str) -> None:
    placed = [(x.at(t), y.at(seconds)) for t, seconds in points]
    canvas.path(placed, colour, stroke_width=1.5, opacity=0.55)
    for px, py in placed:
        canvas.dot(px, py, 2.6, colour, opacity=0.85)
