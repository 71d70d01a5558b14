"""How the answer of `deadpool plan` is shown: as text that fits one screen, with `why` also what it rests on, and as a
picture of goodput over the number of spares and over the capture interval."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from deadpool.sizing.advice import Advice
from deadpool.sizing.audits import AuditInterval
from deadpool.sizing.failure_history import RACK
from deadpool.sizing.goodput import Forecast, outlook
from deadpool.sizing.inputs import GB, Inputs
from deadpool.views.picture.svg import Axis, Canvas

WIDTH, PANEL, GAP, TOP, HEIGHT = 960.0, 380.0, 84.0, 100.0, 240.0
_LEFT = 76.0
POINTS = 40
LEAST_LOSS = 1e-6
"""The least share of the time that can be told apart from none."""


def short_text(advice: Advice) -> str:
    return "\n".join(_lines(advice))


def _lines(advice: Advice) -> Iterator[str]:
    inputs, best, (low, high) = advice.inputs, advice.best, advice.band
    size = f"{inputs.nodes} nodes x {inputs.ranks_per_node} ranks, {inputs.days:g} days"
    yield f"{size}, a step of {inputs.step_s:g} s, {inputs.state_gb:g} GB per rank"
    yield f"expected interruptions: {_count(advice):.0f} ({_every(advice)}); rate: {advice.rate_from}"
    yield ""
    rows = (*_settings(inputs, best), *_silent_errors(inputs, advice.audits))
    yield from (f"  {name:<17} {value:<14} {words}" for name, value, words in rows)
    yield ""
    band = f"nine of ten runs between {100 * low:.2f} and {100 * high:.2f} %"
    yield f"  {'goodput':<17} {f'{100 * best.goodput:.2f} %':<14} {band}"
    yield from _prices(advice)
    yield ""
    yield from _spares(advice)
    yield ""
    yield from _rack(advice)


def _settings(inputs: Inputs, best: Forecast) -> Iterator[tuple[str, str, str]]:
    """Name, value, and what follows from it."""
    choice, costs = best.choice, best.costs
    memory = f"{(costs.own_bytes + costs.held_bytes) / GB:.0f} of {inputs.host_memory_gb:g} GB per node"
    lost = f"any {choice.scheme.survives} node{'s' if choice.scheme.survives > 1 else ''} at once may be lost"
    needed = f"{best.fatal_per_s * inputs.seconds:.2g} times in {inputs.days:g} days it is needed"
    yield "spares", str(choice.spares), f"the job waits for one {100 * best.short.share:.2g} % of the time"
    yield "protection", str(choice.scheme), f"{lost}; {memory}, {costs.wire_bytes / GB:.3g} GB sent per version"
    kept = "parity" if choice.scheme.coded else "copies"
    yield "holders", str(choice.scheme.copies), f"nodes that keep each rank's {kept}"
    captured = f"{costs.capture_s:.2g} s to host, complete {costs.lag_s:.2g} s after the step"
    yield "capture", f"every {_steps(choice.every)}", captured
    yield "durable", f"every {_minutes(choice.durable_s)}", f"{best.write_s:.0f} s to write; {needed}"
    yield "--spare-wait-s", f"{3600 * inputs.wait_h:.0f}", "longer than repairs last, or the job ends while it waits"


def _silent_errors(inputs: Inputs, audits: AuditInterval) -> Iterator[tuple[str, str, str]]:
    expected, days = f"{audits.expected:.2g}", f"{inputs.days:g} days"
    if audits.every:
        costs = f"{100 * audits.cost_share:.2g} % of the time; a device that errs in every step is found within so many"
        yield "--audit-every", _steps(audits.every), costs
        once = "come once, in a step that is not audited" if audits.not_found else "come once"
        yield "not found by it", f"{audits.not_found:.2g} of {expected}", f"silent errors in {days}: they {once}"
    else:
        yield "--audit-every", "none", f"{expected} silent errors are expected in {days}: audits would cost more"


def _count(advice: Advice) -> float:
    """Returns the number of interruptions of nodes that train, in the whole run."""
    return sum(kind.per_s for kind in advice.best.kinds if not kind.loses_all) * advice.inputs.seconds


def _every(advice: Advice) -> str:
    count = _count(advice)
    return f"one every {advice.inputs.days * 24 / count:.1f} hours" if count >= 0.01 else "none to speak of"


def _steps(every: int) -> str:
    return f"{every} step{'s' if every > 1 else ''}"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds else "never"


def _prices(advice: Advice) -> Iterator[str]:
    inputs, best = advice.inputs, advice.best
    useful = f"for {inputs.days:g} useful days"
    yield f"  {'':<26} {'goodput':>10}  {'price per useful hour':>21}  {useful:>22}"
    rows = [("DeadPool", best.goodput), *((each.name, each.goodput) for each in advice.others)]
    for name, goodput in rows:
        hourly = hourly_price(inputs, best.choice.spares, goodput)
        yield f"  {name:<26} {100 * goodput:>8.2f} %  {hourly:>21,.0f}  {hourly * 24 * inputs.days:>22,.0f}"


def _spares(advice: Advice) -> Iterator[str]:
    """What it was chosen for, and what one would get for more or fewer of them."""
    inputs, chosen = advice.inputs, advice.best
    yield f"spares: {advice.aim}"
    for seen in advice.nearby:
        count = seen.choice.spares
        hourly = hourly_price(inputs, count, seen.goodput)
        waits = f"waits {_hours(seen.short.share * inputs.seconds)} in {inputs.days:g} days"
        mark = "  <- this plan" if count == chosen.choice.spares else ""
        yield f"  {count:>5} spares  {100 * seen.goodput:8.3f} %  {hourly:>12,.0f} per useful hour, {waits}{mark}"
    if chosen.choice.spares == 0 and (losses := _losses(advice)) >= 0.05:
        stops = f"each of {losses:.2g} losses of a node would stop training until it is back"
        yield f"  {stops}; if you mind: --goodput-at-least"


def _losses(advice: Advice) -> float:
    """Returns the number of unplanned losses of nodes, in the whole run."""
    names = {each.name for each in advice.mix if each.takes_node}
    return sum(kind.per_s for kind in advice.best.kinds if kind.name in names) * advice.inputs.seconds


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2g} h" if seconds >= 360 else f"{seconds / 60:.2g} min"


def hourly_price(inputs: Inputs, spares: int, goodput: float) -> float:
    """Returns the price of all nodes that are paid for, per hour of new steps."""
    return inputs.price * (inputs.nodes + spares) / goodput if goodput > 0 else float("inf")


def _rack(advice: Advice) -> Iterator[str]:
    inputs, choice = advice.inputs, advice.best.choice
    if inputs.nodes_per_rack <= 1:
        yield "racks: no two nodes share one (--nodes-per-rack), so none is planned for"
        return
    per, needed = inputs.nodes_per_rack, choice.scheme.racks_needed
    kept = "survives it" if advice.survives_rack else "does NOT survive it: the job goes back to its durable checkpoint"
    yield f"the loss of a rack ({per} nodes): the state {kept}. It takes:"
    yield f"  - racks named to the agents (--rack), {needed} or more of them: there are {inputs.racks}"
    short = per - choice.spares
    wait = f"{short} more than recommended, {inputs.price * short:,.0f} per hour" if short > 0 else "there are"
    yield f"  - {per} spares at once, or the job waits until nodes are back: {wait}"


def why(advice: Advice) -> str:
    return "\n".join(_reasons(advice))


def _reasons(advice: Advice) -> Iterator[str]:
    inputs, best = advice.inputs, advice.best
    yield "where the time goes"
    for name, share in sorted(best.losses().items(), key=lambda each: -each[1]):
        yield f"  {100 * share:8.4f} %  {name}"
    yield "\neach interruption: how often, how long training stands still, how much is done again"
    for kind in best.kinds:
        times = f"{kind.per_s * inputs.seconds:9.3g} times"
        yield f"  {kind.name:<18} {times}  {kind.stopped_s:7.1f} s  {kind.redone_s:9.1f} s"
    yield f"  a newcomer has rehearsed its ranks with probability {100 * best.rehearsed:.1f} %; else it builds first"
    yield from _audits(advice.audits)
    yield "\nschemes that fit the memory, with these spares"
    for seen in advice.schemes:
        yield f"  {_scheme(seen)}"
    yield "\ninputs"
    yield from (f"  {line}" for line in assumptions(inputs))
    yield f"  phases: {advice.phases.source}"
    yield from _mix(advice)
    yield "\nassumed of the others"
    yield from (f"  {each.name}: {each.assumed}" for each in advice.others)
    yield "\nthe model: G = A (1 - sum r w) exp(-sum r D) / (1 + o); A by a binomial pool of nodes; docs/howto/plan.md"


def _audits(audits: AuditInterval) -> Iterator[str]:
    yield "\nsilent errors: an audit every N steps costs C / (N T), and loses r N T / 2; least at N T = sqrt(2 C / r)"
    kinds = (
        f"{audits.repeating:.2g} devices that err again and again (r), {audits.expected - audits.repeating:.2g} once"
    )
    yield f"  expected in the run: {kinds}; an audit takes {audits.audit_s:.1f} s (C)"
    yield f"  audits {100 * audits.cost_share:.4f} %, steps computed with an error {100 * audits.lost_share:.4f} %"
    yield "  replicas find more, at no cost, where ranks hold the same state: an update that differs, in every version"


def _scheme(seen: Forecast) -> str:
    held, wire = seen.costs.held_bytes / GB, seen.costs.wire_bytes / GB
    scheme, every = seen.choice.scheme, _steps(seen.choice.every)
    return (
        f"{scheme!s:<10} goodput {100 * seen.goodput:.4f} %, held {held:.0f} GB per node, {wire:.3g} GB sent, every "
        f"{every}, {seen.costs.rebuild_s:.1f} s to rebuild a node, needs {scheme.racks_needed} racks"
    )


def assumptions(inputs: Inputs) -> list[str]:
    return [
        f"{each.name:<16} {getattr(inputs, each.name):<10g} {each.metadata['unit']:<9} {each.metadata['meaning']}"
        for each in fields(inputs)
    ]


def _mix(advice: Advice) -> Iterator[str]:
    yield "  interruptions (Llama 3's mix, arXiv 2407.21783, table 5; what follows from each cause is our assumption):"
    for each in advice.mix:
        unit = "rack" if each.kind == RACK else "node"
        mtbf = f"one per {unit} in {1 / each.per_s / 3600:,.0f} h" if each.per_s > 0 else "never"
        yield f"    {each.name:<10} {mtbf}, away for {each.away_s / 3600:.2g} h"


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
