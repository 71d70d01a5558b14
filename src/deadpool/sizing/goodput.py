"""The model of goodput, and of the pool of spares.

`Shortage`: how often fewer nodes are there than the job needs.

Each node alternates between being there and being away, independently of the others. After a while the number away
is binomial, whatever the distribution of repair times: with n nodes, p = d / (1 + d), where d is the sum over kinds
of rate times mean time away. Racks alternate likewise, and take all their nodes. The job waits while more than the
spares are away. A run begins with all nodes there, so p grows to its final value; the mean over the run is taken.

The model: the share of time in which a job computes new steps.

    G = A * (1 - sum r_i w_i) * exp(-sum r_i D_i) / (1 + o)

A  share of time in which enough nodes are there (`goodput.py`) r  interruptions of kind i per second, of the
nodes that train D  how long training stands still after one: detect, unwind, plan, prepare, connect w  work that is
done again: from the newest complete version to the fault, lag + k T / 2 as a mean o  what captures and durable
checkpoints cost, as a share of the step time

exp(-r D) and not 1 - r D, because a fault in mid-recovery begins it again. A loss of every copy of some rank is one
more kind, whose w is half of a durable interval. Its rate: every node is out of reach (lost and not yet
re-protected, or missing for want of a spare) with probability x, and one more loss in the same group of n nodes is
fatal if m are out already: (groups) * n * C(n - 1, m) * x^m * (rate of one node).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from deadpool.sizing.failure_history import PLANNED, PROCESS, RACK, InterruptionRate
from deadpool.sizing.inputs import GB, Inputs, Phases
from deadpool.sizing.protection import Costs, ProtectionScheme, costs_of, overhead

MOMENTS = 24
"""The moments of the run at which the state of the pool is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """`share` of the time some node is missing, and `missing` are as a mean over all time."""

    share: float
    missing: float


def shortage(nodes: int, spares: int, nodes_per_rack: int, mix: Sequence[InterruptionRate], seconds: float) -> Shortage:
    total = nodes + spares
    alone = [each for each in mix if each.kind not in (PROCESS, RACK)]
    racks = [each for each in mix if each.kind == RACK and each.per_s > 0 and nodes_per_rack]
    shares, missing = 0.0, 0.0
    for moment in range(MOMENTS):
        at = seconds * (moment + 0.5) / MOMENTS
        away = _binomial(total, _away(alone, at), spares)
        rack_away = (
            _binomial(-(-total // nodes_per_rack), _away(racks, at), spares // nodes_per_rack) if racks else [1.0]
        )
        share, short = _beyond(away, rack_away, nodes_per_rack, spares, total * _away(alone, at))
        mean_racks = -(-total // nodes_per_rack) * _away(racks, at) if racks else 0.0
        shares += share / MOMENTS
        missing += max(0.0, short + nodes_per_rack * mean_racks) / MOMENTS
    return Shortage(share=shares, missing=missing)


def _away(kinds: Sequence[InterruptionRate], at: float) -> float:
    """Probability that one of them is away after that time."""
    due = sum(each.per_s * each.away_s * (1.0 - math.exp(-at / each.away_s)) for each in kinds if each.away_s > 0)
    return due / (1.0 + due)


def _binomial(count: int, p: float, up_to: int) -> list[float]:
    """Probabilities of 0 .. `up_to` of `count`."""
    if p <= 0.0:
        return [1.0] + [0.0] * up_to
    log_p, log_q = math.log(p), math.log1p(-p)
    return [
        math.exp(
            math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) + k * log_p + (count - k) * log_q
        )
        if k <= count
        else 0.0
        for k in range(up_to + 1)
    ]


def _beyond(away: list[float], racks: list[float], per_rack: int, spares: int, mean: float) -> tuple[float, float]:
    """The probability that more than the spares are away, and the mean of how many more, without the mean that racks
    add (the caller knows it): E[(X - S)+] = E[X] - S + E[(S - X)+]."""
    within, unused = 0.0, 0.0
    for lost_racks, p_racks in enumerate(racks):
        left = spares - lost_racks * per_rack
        for lost in range(min(left, len(away) - 1) + 1):
            within += p_racks * away[lost]
            unused += p_racks * away[lost] * (left - lost)
    return max(0.0, 1.0 - within), mean - spares + unused


DURABLE_SLOWDOWN = 0.026
"""Steps while a checkpoint is written take so much longer: worst of three runs in docs/benchmarks.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    spares: int
    scheme: ProtectionScheme
    every: int  # steps from one capture to the next
    durable_s: float  # from one durable checkpoint to the next
    racks_known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class KindCost:
    """What one kind of interruption costs: how many there are per second, and each one's seconds."""

    name: str
    per_s: float
    stopped_s: float
    redone_s: float
    loses_all: bool = False  # every copy of some rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the model expects of one choice."""

    choice: Choice
    goodput: float
    kinds: tuple[KindCost, ...]
    short: Shortage
    overhead: float
    fatal_per_s: float
    costs: Costs
    write_s: float
    read_s: float
    rehearsed: float  # probability that a newcomer has rehearsed its ranks

    def losses(self) -> dict[str, float]:
        """Shares of the time, by reason; with the goodput they make up about 1."""
        running = 1.0 - self.short.share
        found = {f"{kind.name}: stopped": running * kind.per_s * kind.stopped_s for kind in self.kinds}
        found |= {f"{kind.name}: done again": running * kind.per_s * kind.redone_s for kind in self.kinds}
        return {"waiting for a spare": self.short.share, "protection": running * self.overhead} | found


def outlook(inputs: Inputs, mix: Sequence[InterruptionRate], phases: Phases, choice: Choice) -> Forecast:
    costs = costs_of(choice.scheme, inputs)
    short = shortage(inputs.nodes, choice.spares, inputs.nodes_per_rack, mix, inputs.seconds)
    write_s = read_s = GB * inputs.state_gb * inputs.ranks_per_node * inputs.nodes / inputs.store_bytes_s
    taken = overhead(inputs, choice.every)
    taken += DURABLE_SLOWDOWN * write_s / choice.durable_s if choice.durable_s else 0.0
    away = sum(each.per_s * each.away_s for each in mix if each.kind not in (PROCESS, RACK)) * inputs.nodes
    rehearsed = min(1.0, max(0.0, choice.spares - away) / inputs.nodes)
    kinds = _kinds(inputs, mix, phases, choice, costs, rehearsed)
    fatal = _fatal_per_s(inputs, mix, choice, kinds, short)
    back_s = choice.durable_s / 2 + write_s
    lost = KindCost(name="every copy lost", per_s=fatal, stopped_s=read_s, redone_s=back_s, loses_all=True)
    kinds = (*kinds, lost)
    return Forecast(
        choice=choice,
        goodput=_combine(kinds, short.share, taken),
        kinds=kinds,
        short=short,
        overhead=taken,
        fatal_per_s=fatal,
        costs=costs,
        write_s=write_s,
        read_s=read_s,
        rehearsed=rehearsed,
    )


def _combine(kinds: Sequence[KindCost], waiting: float, taken: float) -> float:
    redone = sum(kind.per_s * kind.redone_s for kind in kinds)
    stopped = sum(kind.per_s * kind.stopped_s for kind in kinds)
    return (1.0 - waiting) * max(0.0, 1.0 - redone) * math.exp(-stopped) / (1.0 + taken)


def _kinds(
    inputs: Inputs, mix: Sequence[InterruptionRate], phases: Phases, choice: Choice, costs: Costs, rehearsed: float
) -> tuple[KindCost, ...]:
    redone_s = costs.lag_s + choice.every * inputs.step_s / 2
    common_s = phases.unwind_s + phases.plan_s + phases.prepare_s + phases.connect_s
    stopped = {
        PROCESS: phases.detect_process_s + inputs.build_s + costs.own_load_s,
        PLANNED: costs.rebuild_s,
        RACK: phases.detect_node_s + inputs.build_s + costs.rebuild_s,
    }
    node_s = phases.detect_node_s + (1.0 - rehearsed) * inputs.build_s + costs.rebuild_s
    return tuple(
        KindCost(
            name=each.name,
            per_s=each.per_s * (inputs.racks if each.kind == RACK else inputs.nodes),
            stopped_s=common_s + stopped.get(each.kind, node_s),
            redone_s=0.0 if each.kind == PLANNED else redone_s,
        )
        for each in mix
        if each.per_s > 0
    )


def _fatal_per_s(
    inputs: Inputs, mix: Sequence[InterruptionRate], choice: Choice, kinds: Sequence[KindCost], short: Shortage
) -> float:
    """How often every copy of some rank is lost."""
    scheme, nodes = choice.scheme, inputs.nodes
    one_node = sum(each.per_s for each in mix if each.takes_node)
    racks = sum(each.per_s for each in mix if each.kind == RACK) * inputs.racks
    lost = {kind.name: kind.per_s * kind.stopped_s for kind in kinds}
    out = sum(lost.get(each.name, 0.0) for each in mix if each.takes_node)
    out += lost.get(RACK, 0.0) * inputs.nodes_per_rack + short.missing
    x, size = min(1.0, out / nodes), min(scheme.group, nodes)
    groups = nodes / size if scheme.coded else nodes
    fatal = groups * size * math.comb(max(0, size - 1), scheme.copies) * x**scheme.copies * one_node
    return fatal + (0.0 if survives_a_rack(inputs, choice) else racks)


def survives_a_rack(inputs: Inputs, choice: Choice) -> bool:
    """Tells whether all copies survive a rack; training also needs as many spares as the rack has nodes, or waits."""
    if inputs.nodes_per_rack <= 1:
        return True
    return choice.racks_known and inputs.racks >= choice.scheme.racks_needed
