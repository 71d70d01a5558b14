"""The answer as a picture: goodput over the number of spares, and over the capture interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from deadpool.picture.axis import Axis
from deadpool.picture.svg import Canvas
from deadpool.sizing.advice import Advice
from deadpool.sizing.goodput import outlook

WIDTH, PANEL, GAP, TOP, HEIGHT = 960.0, 390.0, 60.0, 96.0, 230.0
_LEFT = 70.0
POINTS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    title: str
    unit: str
    points: tuple[tuple[float, float], ...]  # value, goodput
    chosen: float
    is_log: bool


def curves(advice: Advice) -> tuple[Curve, Curve]:
    return _over_spares(advice), _over_interval(advice)


def _over_spares(advice: Advice) -> Curve:
    chosen = advice.best.choice.spares
    most = max(8, 2 * chosen + 4)
    counts = sorted({round(most * i / POINTS) for i in range(POINTS + 1)} | {chosen})
    return Curve(
        title="Goodput over spares",
        unit="spares",
        points=tuple((float(count), _goodput(advice, spares=count)) for count in counts),
        chosen=float(chosen),
        is_log=False,
    )


def _over_interval(advice: Advice) -> Curve:
    chosen = advice.best.choice.every
    most = max(64, 16 * chosen)
    steps = sorted({round(most ** (i / POINTS)) for i in range(POINTS + 1)} | {chosen})
    return Curve(
        title="Goodput over the capture interval",
        unit="steps (logarithmic)",
        points=tuple((float(every), _goodput(advice, every=every)) for every in steps),
        chosen=float(chosen),
        is_log=True,
    )


def _goodput(advice: Advice, **changed: int) -> float:
    choice = replace(advice.best.choice, **changed)  # type: ignore[arg-type]
    return outlook(advice.inputs, advice.mix, advice.phases, choice).goodput


def draw(advice: Advice) -> str:
    """As an SVG."""
    canvas, best = Canvas(WIDTH), advice.best
    title = (
        f"{advice.inputs.nodes} nodes, {best.choice.spares} spares: {100 * best.goodput:.2f} % of the time is new steps"
    )
    canvas.text(28, 40, title, size="large")
    low, high = advice.band
    words = f"nine of ten runs between {100 * low:.2f} and {100 * high:.2f} %; the dots are the choice"
    canvas.text(28, 62, f"{best.choice.scheme}, {words}", "quiet")
    for nth, curve in enumerate(curves(advice)):
        _draw_curve(canvas, curve, _LEFT + nth * (PANEL + GAP))
    return canvas.render(TOP + HEIGHT + 62, title)


def _draw_curve(canvas: Canvas, curve: Curve, left: float) -> None:
    values, goodputs = [p[0] for p in curve.points], [100 * p[1] for p in curve.points]
    x = Axis(_place(curve, values[0]), _place(curve, values[-1]), left, left + PANEL)
    low, high = min(goodputs), max(goodputs)
    room = max(0.01, 0.08 * (high - low))
    y = Axis(low - room, min(100.0, high + room) if high < 100 else 100.0 + room, TOP + HEIGHT, TOP + 16)
    canvas.text(left, TOP, curve.title, size="head")
    for value in y.ticks(5):
        canvas.line(left, y.at(value), left + PANEL, y.at(value), "rule")
        canvas.text(left - 6, y.at(value) + 4, f"{value:g} %", "quiet", size="small", anchor="end")
    _label(canvas, curve, x, values)
    canvas.path(
        [(x.at(_place(curve, v)), y.at(g)) for v, g in zip(values, goodputs, strict=True)], "survivor", stroke_width=2
    )
    at = values.index(curve.chosen)
    canvas.dot(x.at(_place(curve, curve.chosen)), y.at(goodputs[at]), 4.5, "newcomer")


def _label(canvas: Canvas, curve: Curve, x: Axis, values: Sequence[float]) -> None:
    if curve.is_log:
        ticks = [2.0**i for i in range(int(math.log2(values[-1])) + 1)]
    else:
        ticks = [tick for tick in x.ticks(8) if tick == round(tick)]
    for value in ticks:
        canvas.text(x.at(_place(curve, value)), TOP + HEIGHT + 18, f"{value:g}", "quiet", size="small", anchor="middle")
    canvas.text(x.end, TOP + HEIGHT + 36, curve.unit, "quiet", size="small", anchor="end")


def _place(curve: Curve, value: float) -> float:
    return math.log2(value) if curve.is_log else value
