"""The answer as text: one screen, and with `why` what it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from deadpool.sizing.advice import Advice
from deadpool.sizing.failure_history import RACK
from deadpool.sizing.goodput import Outlook
from deadpool.sizing.inputs import GB, Inputs


def short_text(advice: Advice) -> str:
    return "\n".join(_lines(advice))


def _lines(advice: Advice) -> Iterator[str]:
    inputs, best, (low, high) = advice.inputs, advice.best, advice.band
    size = f"{inputs.nodes} nodes x {inputs.ranks_per_node} ranks, {inputs.days:g} days"
    yield f"{size}, a step of {inputs.step_s:g} s, {inputs.state_gb:g} GB per rank"
    yield f"expected interruptions: {_count(advice):.0f} ({_every(advice)}); rate: {advice.rate_from}"
    yield ""
    yield from (f"  {name:<17} {value:<14} {words}" for name, value, words in _settings(inputs, best))
    yield ""
    band = f"nine of ten runs between {100 * low:.2f} and {100 * high:.2f} %"
    yield f"  {'goodput':<17} {f'{100 * best.goodput:.2f} %':<14} {band}"
    yield from _prices(advice)
    yield ""
    yield from _spares(advice)
    yield ""
    yield from _rack(advice)


def _settings(inputs: Inputs, best: Outlook) -> Iterator[tuple[str, str, str]]:
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


def _scheme(seen: Outlook) -> str:
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
