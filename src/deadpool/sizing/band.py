"""How much one run differs from what is expected: the same rates, drawn many times.

A draw has its own failures and times away, and its own rate where the rate is not known for certain. It knows nothing
of the formula for shortages, so that its mean also checks the model.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from random import Random

from deadpool.sizing.failure_mix import PLANNED, RACK, Interruption
from deadpool.sizing.goodput import Outlook
from deadpool.sizing.inputs import Inputs

DRAWS = 200
MOST_EVENTS = 2_000_000
"""The most events in all draws: there are fewer draws where there are many failures."""


def band(
    inputs: Inputs, mix: Sequence[Interruption], expected: Outlook, *, evidence: float | None, seed: int = 0
) -> tuple[float, float]:
    """Returns the goodputs between which nine of ten runs end. `evidence` is the number of failures from which the rate
    was estimated.
    """
    found = sorted(draws(inputs, mix, expected, evidence=evidence, seed=seed))
    edge = max(0, round(0.05 * len(found)) - 1)
    return found[edge], found[-1 - edge]


def draws(
    inputs: Inputs, mix: Sequence[Interruption], expected: Outlook, *, evidence: float | None = None, seed: int = 0
) -> list[float]:
    random = Random(seed)
    total = inputs.nodes + expected.choice.spares
    events = sum(each.per_s for each in mix) * total * inputs.seconds
    count = int(max(20, min(DRAWS, MOST_EVENTS / max(1.0, events))))
    return [_draw(inputs, mix, expected, _factor(random, evidence), random) for _ in range(count)]


def _factor(random: Random, evidence: float | None) -> float:
    """Draws the factor by which the rate may be another one than estimated: Gamma, with the shape of the number of
    failures seen.
    """
    return 1.0 if evidence is None else random.gammavariate(evidence + 0.5, 1.0 / (evidence + 0.5))


def _draw(inputs: Inputs, mix: Sequence[Interruption], expected: Outlook, factor: float, random: Random) -> float:
    nodes, spares = inputs.nodes, expected.choice.spares
    total, racks = nodes + spares, inputs.racks
    kinds = {kind.name: kind for kind in expected.kinds}
    rates = [factor * each.per_s * (racks if each.kind == RACK else total) for each in mix]
    at, away, waiting_s, lost_s = 0.0, 0, 0.0, 0.0
    back: list[tuple[float, int]] = []
    fatal = factor * expected.fatal_per_s
    while True:
        pause_s = random.expovariate(sum(rates)) if sum(rates) > 0 else inputs.seconds
        until = min(inputs.seconds, at + pause_s)
        while back and back[0][0] <= until:
            waiting_s += (back[0][0] - at) if away > spares else 0.0
            at, returned = heapq.heappop(back)
            away -= returned
        waiting_s += (until - at) if away > spares else 0.0
        at = until
        if at >= inputs.seconds:
            break
        each = random.choices(mix, rates)[0]
        size = inputs.nodes_per_rack if each.kind == RACK else 1
        runs = away <= spares
        seated = nodes / max(1, total - away)
        if runs and (each.kind == RACK or random.random() < seated):
            lost_s += kinds[each.name].stopped_s + 2 * random.random() * kinds[each.name].redone_s
        if each.away_s and not (each.kind == PLANNED and away >= spares):
            away += size
            heapq.heappush(back, (at + random.expovariate(1.0 / each.away_s), size))
    if fatal > 0 and random.random() < fatal * inputs.seconds:
        lost = next(kind for kind in expected.kinds if kind.loses_all)
        lost_s += lost.stopped_s + 2 * random.random() * lost.redone_s
    return max(0.0, 1.0 - (waiting_s + lost_s) / inputs.seconds) / (1.0 + expected.overhead)
