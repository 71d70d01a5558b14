"""Draws the lower panel: the phases of a recovery, and below them how long each rank took for its part of them."""

from __future__ import annotations

from dataclasses import dataclass

from deadpool.events.story import PHASES, Record, Recovery
from deadpool.views.picture.svg import Axis, Canvas, in_words, text_px, tick_words

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


def height(recovery: Recovery) -> float:
    return _PHASES_BAR + 16 + _ROW * len(rank_rows(recovery)) + 8


def draw(canvas: Canvas, recovery: Recovery, left: float, right: float, top: float) -> None:
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
