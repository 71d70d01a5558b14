"""What `deadpool plan` would say of this job: from its own faults, recoveries, step time and size, for the page.

It is computed where the page is served, and only when what it rests on has changed by much. Prices are not known here:
nodes cost the same, and that is all that counts for the choice.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from deadpool.errors import ConfigError
from deadpool.sizing.advice import Advice, Wishes, advise
from deadpool.sizing.failure_history import FailureCounts as Seen
from deadpool.sizing.failure_history import mix
from deadpool.sizing.goodput import outlook
from deadpool.sizing.inputs import GB, Inputs, Phases, means_of
from deadpool.sizing.presentation import Curve, curves, goodput_ticks, nines
from deadpool.sizing.protection import ProtectionScheme, parse_scheme
from deadpool.views.dashboard import words
from deadpool.views.dashboard.history import Interruption, JobHistory

LEAST_TRAINED_S = 60.0
"""The time of training before which a step time is hardly known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the plan rests on, rounded: it is made anew when one of these changes."""

    nodes: int
    ranks_per_node: int
    spares: int
    every: int
    slots: int
    scheme: str
    node_hours: float
    faults: tuple[tuple[str, int], ...]
    step_s: float
    build_s: float
    state_gb: float
    nodes_per_rack: int
    memory_gb: float | None
    link_gb_s: float | None
    phases: Phases


def plan_part(
    history: JobHistory,
    found: list[Interruption],
    settings: dict[str, Any],
    status: dict[str, Any] | None,
    *,
    now: float,
) -> dict[str, Any]:
    until = float(history.ended["t"]) if history.ended is not None else now
    trained_s = history.fold.trained_s(until)
    if not history.seats or history.usual_step_s is None or trained_s < LEAST_TRAINED_S:
        return {"text": "A plan follows when the job has trained for a minute.", "about": "", "charts": []}
    try:
        return _plan(_known(history, found, settings, status, trained_s))
    except ConfigError as error:
        return {"text": f"No plan: {error}", "about": "", "charts": []}


def _known(
    history: JobHistory,
    found: list[Interruption],
    settings: dict[str, Any],
    status: dict[str, Any] | None,
    trained_s: float,
) -> Known:
    by_need = ((status or {}).get("slots") or {}).get("least")
    scheme, slots = _scheme(settings), int(settings.get("slots") or by_need or 3)
    recovered = [each.phases_s for each in found if "connect" in each.phases_s and each.kind == "fault"]
    machines = [history.nodes[name] for name in history.seats if name in history.nodes]
    arena = float((history.progress or {}).get("arena_bytes") or 0.0)
    ranks = len(history.seats) * history.per_node
    began = (history.trained_since or 0.0) - (history.began or 0.0)
    return Known(
        nodes=len(history.seats),
        ranks_per_node=history.per_node,
        spares=status["spares"] if status else _spares(history),
        every=status["interval"]["every"] if status else history.every,
        slots=slots,
        scheme=str(scheme),
        node_hours=_rounded(len(history.seats) * trained_s / 3600),
        faults=tuple(sorted(history.fold.recoveries.faults.items())),
        step_s=_rounded(history.usual_step_s or 0.0),
        build_s=0.0 if recovered else _rounded(max(0.0, began)),
        state_gb=_rounded(arena / GB / (ranks * slots * (1 + scheme.memory_share))),
        nodes_per_rack=max(Counter(node.rack for node in machines if node.rack).values(), default=0),
        memory_gb=min((node.memory_bytes / GB for node in machines if node.memory_bytes), default=None),
        link_gb_s=min((node.link_gbps for node in machines if node.link_gbps), default=None),
        phases=means_of(recovered, f"means of {len(recovered)} recoveries of this job") if recovered else Phases(),
    )


def _scheme(settings: dict[str, Any]) -> ProtectionScheme:
    """`auto` and nothing: as many copies as there are holders."""
    try:
        return parse_scheme(str(settings.get("protect") or ""))
    except ConfigError:
        return ProtectionScheme(max(1, int(settings.get("holders") or 1)))


def _spares(history: JobHistory) -> int:
    there, seated = [node for node in history.nodes.values() if not node.lost and not node.left], set(history.seats)
    return sum(node.spare and node.name not in seated for node in there)


def _rounded(value: float) -> float:
    """Rounds to two digits: less than the rest is known by."""
    return float(f"{value:.2g}")


@functools.lru_cache(maxsize=8)
def _plan(known: Known) -> dict[str, Any]:
    seen = Seen(known.node_hours)
    seen.count(Counter(dict(known.faults)))
    given = {"host_memory_gb": known.memory_gb, "network_gb_s": known.link_gb_s}
    inputs = Inputs(
        nodes=known.nodes,
        ranks_per_node=known.ranks_per_node,
        mtbf_h=seen.mtbf_h,
        step_s=max(1e-3, known.step_s),
        build_s=known.build_s,
        state_gb=known.state_gb,
        slots=known.slots,
        nodes_per_rack=known.nodes_per_rack,
        **{name: value for name, value in given.items() if value},  # type: ignore[arg-type]
    )
    wishes = Wishes(scheme=parse_scheme(known.scheme))
    advice = advise(inputs, mix(inputs, seen.shares()), known.phases, wishes, banded=False)
    present = replace(advice.best.choice, spares=known.spares, every=max(1, known.every))
    now = outlook(inputs, advice.mix, advice.phases, present).goodput
    over_spares, over_interval = curves(advice)
    return {
        "text": _sentence(advice, known, now),
        "about": _about(advice, seen, known),
        "charts": [_chart("spares", over_spares, known.spares), _chart("interval", over_interval, known.every)],
    }


def _sentence(advice: Advice, known: Known, now: float) -> str:
    choice, best = advice.best.choice, words.percent(advice.best.goodput)
    advised = f"{words.plural(choice.spares, 'spare')} and a snapshot every {words.plural(choice.every, 'step')}"
    present = f"{words.plural(known.spares, 'spare')} and a snapshot every {words.plural(known.every, 'step')}"
    if (choice.spares, choice.every) == (known.spares, known.every):
        told = (
            f"{advised}, as now, cost least per useful hour: {best} of {advice.inputs.days:g} days would be new steps"
        )
    else:
        told = (
            f"{advised} would cost least per useful hour: {best} of {advice.inputs.days:g} days would be new steps; "
            f"with {present}, as now, {words.percent(now)}"
        )
    return f"{told}{_one_more(advice)}."


def _one_more(advice: Advice) -> str:
    """Price is not all that counts: where one spare more brings much, that is said."""
    choice, inputs = advice.best.choice, advice.inputs
    more = outlook(inputs, advice.mix, advice.phases, replace(choice, spares=choice.spares + 1)).goodput
    if more - advice.best.goodput < 0.001:
        return ""
    nodes = inputs.nodes + choice.spares
    dearer = (nodes + 1) / nodes * advice.best.goodput / more - 1
    return f"; one spare more: {words.percent(more)}, for {words.percent(dearer, 1)} more per useful hour"


def _about(advice: Advice, seen: Seen, known: Known) -> str:
    low, high = seen.interval_h
    rate = f"one fault per node in {seen.mtbf_h:,.0f} h (nine in ten: {low:,.0f} to {high:,.0f})"
    return (
        f"{advice.best.choice.scheme}; {rate}, from {words.plural(seen.unexpected, 'fault')} in {known.node_hours:g} "
        f"node hours and the published rate of Llama 3; recoveries: {advice.phases.source.partition(':')[0]}"
    )


def _chart(name: str, curve: Curve, now: int) -> dict[str, Any]:
    """Goodput as the picture of `deadpool plan` has it: 90, 99 and 99.9 % are equally far apart."""
    goodputs = [goodput for _, goodput in curve.points]
    ticks = goodput_ticks(min(goodputs), max(goodputs))
    return {
        "name": name,
        "x": [x for x, _ in curve.points],
        "nines": [round(nines(each), 5) for each in goodputs],
        "ticks": [[round(nines(each), 5), f"{100 * each:.6g} %"] for each in ticks],
        "advised": curve.chosen,
        "now": now,
    }
