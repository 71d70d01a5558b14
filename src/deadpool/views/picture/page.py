"""The whole picture of one recovery: a title that says what happened, step times around it, and its phases.

The upper panel shows how long each step of each rank took around a fault, from the `step_times` events of the log. A
step's time counts from the end of the step before, so the first step after a fault includes the standstill. The lower
panel shows the phases of the recovery, and below them how long each rank took for its part of them.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass

from deadpool.errors import ConfigError
from deadpool.events.story import PHASES, Record, Recovery, recoveries
from deadpool.views.picture.svg import Axis, Canvas, in_words, text_px, tick_words

HEIGHT = 190.0
_STEPS_SHOWN = 14  # the most steps on each side
_SHARE_BEFORE = 1.2  # the time shown before a recovery is at least so many times its length

MEANINGS = {
    "detect": "until the fault is known",
    "unwind": "groups aborted, survivors come to rest",
    "plan": "seats, version and sources chosen",
    "prepare": "newcomer built, state loaded",
    "connect": "groups rebuilt, until go",
    "redo": "the first step after it",
}
ROWS_SHOWN = 12
_BAR, _ROW, _PHASES_BAR = 14.0, 24.0, 22.0

_ENDS = {"unwind": "unwound", "prepare": "restored", "connect": "rebuilt", "redo": "resumed"}
"""The event of a rank that ends its part of a phase."""


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


def draw_step_times(
    canvas: Canvas, steps: StepSeries, recovery: Recovery, left: float, right: float, top: float
) -> None:
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


WIDTH = 960.0
_LEFT, _RIGHT = 118.0, WIDTH - 28.0


def draw_page(records: list[Record], cause: str | None = None) -> str:
    """Returns an SVG of the recovery with this cause, or of the last one. Raises ConfigError if there is none."""
    recovery = choose(records, cause)
    canvas = Canvas(WIDTH)
    canvas.text(28, 40, title(recovery), size="large")
    canvas.text(28, 62, subtitle(recovery), "quiet")
    top = _draw_steps(canvas, records, recovery, 92.0)
    canvas.text(28, top, "The recovery, phase by phase", size="head")
    draw_phases(canvas, recovery, _LEFT, _RIGHT, top + 16)
    top += 16 + phases_height(recovery) + 44
    bottom = draw_legend(canvas, recovery, _LEFT, _RIGHT, top)
    return canvas.render(bottom + 12, title(recovery))


def choose(records: list[Record], cause: str | None) -> Recovery:
    complete = [each for each in recoveries(records) if each.first_step_s is not None]
    found = [each for each in complete if cause in (None, each.cause)]
    if not found:
        known = ", ".join(each.cause for each in complete) or "none"
        wanted = f"recovery from {cause}" if cause else "recovery"
        raise ConfigError(f"the run has no completed {wanted} to draw; completed recoveries: {known}")
    return found[-1]


def title(recovery: Recovery) -> str:
    assert recovery.first_step_s is not None
    return f"{_victim(recovery)}: {in_words(recovery.first_step_s)} until every rank had done a new step"


def subtitle(recovery: Recovery) -> str:
    redone = recovery.lost_steps
    ranks = len({r["rank"] for r in recovery.records if r["what"] == "resumed"})
    lost = ", ".join(map(str, recovery.fault["ranks"]))
    return (
        f"{ranks} ranks · rank {lost} lost, resumed at step {recovery.resume_step} · "
        f"{redone or 'no'} completed step{'' if redone == 1 else 's'} done again · {recovery.cause}"
    )


def _victim(recovery: Recovery) -> str:
    """Says "killed" if the first record of the recovery is an injected fault."""
    first, fault = recovery.records[0], recovery.fault
    did = "killed" if first["what"] in ("signal_sent", "injected") else "lost"
    return f"Rank {fault['rank']} {did}" if fault.get("rank") is not None else f"Node {fault['node']} {did}"


def _draw_steps(canvas: Canvas, records: list[Record], recovery: Recovery, top: float) -> float:
    """Draws the step times and returns where the next panel begins."""
    canvas.text(28, top, "Step time", size="head")
    left = _LEFT
    found = read_steps(records, recovery)
    if found is None:
        canvas.text(left, top, "this log has no step times around the fault", "quiet", size="small")
        return top + 36
    words = (
        f"from the end of one step to the end of the next; median before the fault (dashed) {in_words(found.usual_s)}"
    )
    canvas.text(left, top, words, "quiet", size="small")
    _draw_key(canvas, recovery, top)
    draw_step_times(canvas, found, recovery, _LEFT, _RIGHT, top + 26)
    return top + 26 + HEIGHT + 54


def _draw_key(canvas: Canvas, recovery: Recovery, y: float) -> None:
    """Draws the legend of colours, from the right to the left."""
    x = _RIGHT
    lost = ", ".join(map(str, recovery.fault["ranks"]))
    for words, colour in ((f"rank {lost}, taken over", "newcomer"), ("survivors", "survivor")):
        canvas.text(x, y, words, "quiet", size="small", anchor="end")
        x -= text_px(words) * 0.92 + 10
        canvas.dot(x, y - 4, 4.0, colour)
        x -= 18


@dataclass(frozen=True, slots=True)
class Bar:
    phase: str
    began: float  # in seconds since the fault
    ended: float


@dataclass(frozen=True, slots=True)
class Row:
    rank: int
    node: str
    replaced: bool
    bars: tuple[Bar, ...]

    @property
    def label(self) -> str:
        return f"rank {self.rank} · {self.node}"


def phase_bars(recovery: Recovery) -> list[Bar]:
    bars, began = [], 0.0
    for phase in PHASES:
        if phase in recovery.phases_s:
            bars.append(Bar(phase, began, began + recovery.phases_s[phase]))
            began += recovery.phases_s[phase]
    return bars


def rank_rows(recovery: Recovery) -> list[Row]:
    """Returns the replaced ranks first, then the others, up to the number of rows that are shown."""
    phases = {bar.phase: bar for bar in phase_bars(recovery)}
    lost = set(recovery.fault["ranks"])
    ranks = sorted({r["rank"] for r in recovery.records if r["what"] in _ENDS.values()})
    rows = [_row(recovery, rank, phases, rank in lost) for rank in ranks]
    return sorted(rows, key=lambda row: (not row.replaced, row.rank))[:ROWS_SHOWN]


def _row(recovery: Recovery, rank: int, phases: dict[str, Bar], replaced: bool) -> Row:
    """A rank's part of a phase begins with the phase and ends with the rank's own event."""
    own = [r for r in recovery.records if r.get("rank") == rank]
    at = {r["what"]: float(r["t"]) - recovery.began for r in own}
    bars = [
        Bar(phase, phases[phase].began, max(phases[phase].began, at[what]))
        for phase, what in _ENDS.items()
        if what in at and phase in phases
    ]
    return Row(rank, _node_of(own), replaced, tuple(bars))


def _node_of(own: list[Record]) -> str:
    """Returns the node that holds the rank at the end; trainers are named after their nodes."""
    trainers = [str(r["trainer"]) for r in own if "trainer" in r]
    return trainers[-1].rpartition(".")[0] if trainers else "?"


def phases_height(recovery: Recovery) -> float:
    return _PHASES_BAR + 16 + _ROW * len(rank_rows(recovery)) + 8


def draw_phases(canvas: Canvas, recovery: Recovery, left: float, right: float, top: float) -> None:
    bars, rows = phase_bars(recovery), rank_rows(recovery)
    x = Axis(0.0, bars[-1].ended, left, right)
    rows_top = top + _PHASES_BAR + 16
    bottom = rows_top + _ROW * len(rows)
    _draw_axis(canvas, x, top, bottom)
    for bar in bars:
        canvas.line(x.at(bar.ended), top, x.at(bar.ended), bottom, "rule")
        _draw_phase(canvas, x, bar, top)
    for index, row in enumerate(rows):
        _draw_row(canvas, x, row, rows_top + _ROW * index)


def _draw_axis(canvas: Canvas, x: Axis, top: float, bottom: float) -> None:
    in_s = x.high > 2.0
    ticks = x.ticks(8)
    for value in ticks:
        canvas.line(x.at(value), bottom, x.at(value), bottom + 4, "quiet")
        unit = (" s" if in_s else " ms") if value == ticks[-1] else ""
        words = tick_words(value, in_s) + unit
        canvas.text(x.at(value), bottom + 18, words, "quiet", size="small", anchor="middle")
    canvas.line(x.start, bottom, x.end, bottom, "rule")


def _draw_phase(canvas: Canvas, x: Axis, bar: Bar, top: float) -> None:
    width = x.at(bar.ended) - x.at(bar.began)
    canvas.rect(x.at(bar.began), top, max(width, 1.5), _PHASES_BAR, bar.phase, rx=2)
    if text_px(bar.phase) + 8 < width:
        canvas.text((x.at(bar.began) + x.at(bar.ended)) / 2, top + 15, bar.phase, "page", size="head", anchor="middle")


def _draw_row(canvas: Canvas, x: Axis, row: Row, top: float) -> None:
    canvas.rect(x.start, top + 2, x.end - x.start, _ROW - 4, "row")
    canvas.text(x.start - 10, top + 16, row.label, "newcomer" if row.replaced else "ink", size="small", anchor="end")
    for bar in row.bars:
        width = x.at(bar.ended) - x.at(bar.began)
        canvas.rect(x.at(bar.began), top + (_ROW - _BAR) / 2, max(width, 1.5), _BAR, bar.phase, rx=2, opacity=0.8)


def draw_legend(canvas: Canvas, recovery: Recovery, left: float, right: float, top: float) -> float:
    """Draws two columns of phases with their durations and meanings. Returns where the legend ends."""
    column = (right - left) / 2
    bars = phase_bars(recovery)
    lines = (len(bars) + 1) // 2
    for index, bar in enumerate(bars):
        x, y = left + column * (index // lines), top + 19 * (index % lines)
        canvas.rect(x, y - 9, 10.0, 10.0, bar.phase, rx=2)
        canvas.text(x + 16, y, bar.phase, size="head")
        canvas.text(x + 128, y, in_words(bar.ended - bar.began), size="small", anchor="end")
        canvas.text(x + 138, y, MEANINGS[bar.phase], "quiet", size="small")
    return top + 19 * lines
