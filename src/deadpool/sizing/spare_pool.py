"""How often fewer nodes are there than the job needs.

Each node alternates between being there and being away, independently of the others. After a while the number away is
binomial, whatever the distribution of repair times: with n nodes, p = d / (1 + d), where d is the sum over kinds of
rate times mean time away. Racks alternate likewise, and take all their nodes. The job waits while more than the spares
are away. A run begins with all nodes there, so p grows to its final value; the mean over the run is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from deadpool.sizing.failure_mix import PROCESS, RACK, Interruption

MOMENTS = 24
"""The moments of the run at which the state of the pool is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """`share` of the time some node is missing, and `missing` are as a mean over all time."""

    share: float
    missing: float


def shortage(nodes: int, spares: int, nodes_per_rack: int, mix: Sequence[Interruption], seconds: float) -> Shortage:
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


def _away(kinds: Sequence[Interruption], at: float) -> float:
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
