"""The answer as a picture: goodput over the number of spares, and over the capture interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from deadpool.sizing.advice import Advice
from deadpool.sizing.goodput import outlook
from deadpool.views.picture.svg import Axis, Canvas

WIDTH, PANEL, GAP, TOP, HEIGHT = 960.0, 380.0, 84.0, 100.0, 240.0
_LEFT = 76.0
POINTS = 40
LEAST_LOSS = 1e-6
"""The least share of the time that can be told apart from none."""


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
    """Draws the advice as an SVG. The scale is logarithmic in what is missing from 100 %: 90, 99 and 99.9 % are equally
    far apart, since what one decides about lies between 95 and 100 %."""
    canvas, best = Canvas(WIDTH), advice.best
    title = (
        f"{advice.inputs.nodes:,} nodes, {best.choice.spares} spares: {100 * best.goodput:.2f} % of the time is new "
        "steps"
    )
    canvas.text(28, 40, title, size="large")
    low, high = advice.band
    words = f"the bar is where nine of ten runs end, {100 * low:.2f} to {100 * high:.2f} %"
    canvas.text(28, 62, f"The dots are the choice ({best.choice.scheme}); {words}", "quiet")
    for nth, curve in enumerate(curves(advice)):
        band = advice.band if nth == 0 else (best.goodput, best.goodput)  # it is wider than what an interval changes
        _draw_curve(canvas, curve, _LEFT + nth * (PANEL + GAP), band)
    return canvas.render(TOP + HEIGHT + 62, title)


def _draw_curve(canvas: Canvas, curve: Curve, left: float, band: tuple[float, float]) -> None:
    values = [value for value, _ in curve.points]
    x = Axis(_place(curve, values[0]), _place(curve, values[-1]), left + 12, left + PANEL - 12)
    goodputs = [goodput for _, goodput in curve.points]
    y = _goodput_axis(min(*goodputs, band[0]), max(*goodputs, band[1]))
    canvas.text(left, TOP, curve.title, size="head")
    for goodput in goodput_ticks(min(*goodputs, band[0]), max(*goodputs, band[1])):
        at = y.at(nines(goodput))
        canvas.line(left, at, left + PANEL, at, "rule")
        canvas.text(left - 8, at + 4, f"{100 * goodput:.6g} %", "quiet", size="small", anchor="end")
    _label(canvas, curve, x, values)
    canvas.path([(x.at(_place(curve, v)), y.at(nines(g))) for v, g in curve.points], "survivor", style="stroke-width:2")
    chosen_x, goodput = x.at(_place(curve, curve.chosen)), goodputs[values.index(curve.chosen)]
    low, high = (y.at(nines(each)) for each in band)
    canvas.line(chosen_x, low, chosen_x, high, "newcomer", style="stroke-width:2")
    canvas.dot(chosen_x, y.at(nines(goodput)), 4.5, "newcomer")
    noun = curve.unit.split()[0].removesuffix("s") + ("" if curve.chosen == 1 else "s")
    words = f"{curve.chosen:g} {noun}: {100 * goodput:.2f} %"
    right = chosen_x < left + PANEL / 2
    canvas.text(chosen_x + (8 if right else -8), max(low, high) + 14, words, anchor="start" if right else "end")


def nines(goodput: float) -> float:
    """0.9 is 1, 0.99 is 2, 0.999 is 3."""
    return -math.log10(max(LEAST_LOSS, 1.0 - goodput))


def _goodput_axis(low: float, high: float) -> Axis:
    room = max(0.05, 0.08 * (nines(high) - nines(low)))
    return Axis(nines(low) - room, nines(high) + room, TOP + HEIGHT, TOP + 16)


def goodput_ticks(low: float, high: float) -> list[float]:
    """Round ones between the two, as far apart as leaves about six of them."""
    exponents = range(math.floor(-nines(high)) - 1, math.ceil(-nines(low)) + 1)
    found: list[float] = []
    for parts in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)):
        losses = sorted({part * 10.0**exponent for exponent in exponents for part in parts})
        room = max(0.05, 0.08 * (nines(high) - nines(low)))
        inside = [1 - x for x in losses if nines(low) - room <= -math.log10(x) <= nines(high) + room]
        if found and len(inside) > 7:
            break
        found = inside or found
    return found


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
