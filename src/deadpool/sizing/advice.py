"""The choice: what gives the most useful work for the price, among what fits the memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from deadpool.errors import ConfigError
from deadpool.sizing.alternatives import Alternative, alternatives
from deadpool.sizing.band import band
from deadpool.sizing.failure_mix import PROCESS, RACK, Interruption
from deadpool.sizing.goodput import Choice, Outlook, outlook, survives_a_rack
from deadpool.sizing.inputs import GB, Inputs
from deadpool.sizing.phases import Phases
from deadpool.sizing.protection import SCHEMES, Scheme, best_interval, costs_of, fits

LEAST_DURABLE_S, MOST_DURABLE_S = 600.0, 4 * 3600.0
ALIKE = 1e-5
"""Schemes whose goodput differs by less are alike: the one with less memory is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user has chosen already; None: to be recommended."""

    spares: int | None = None
    scheme: Scheme | None = None
    every: int | None = None
    durable_s: float | None = None
    racks_known: bool = True
    goodput: float | None = None  # at least, with as few spares as bring it


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    inputs: Inputs
    mix: tuple[Interruption, ...]
    phases: Phases
    best: Outlook
    band: tuple[float, float]
    schemes: tuple[Outlook, ...]  # that fit, at the same spares and the best interval of each
    others: tuple[Alternative, ...]
    rate_from: str
    aim: str  # what the number of spares was chosen for
    nearby: tuple[Outlook, ...] = ()  # other numbers of spares, the rest as recommended

    @property
    def survives_rack(self) -> bool:
        return survives_a_rack(self.inputs, self.best.choice)


def advise(
    inputs: Inputs,
    mix: tuple[Interruption, ...],
    phases: Phases,
    wishes: Wishes,
    *,
    evidence: float | None = None,
    rate_from: str = "given or default",
    banded: bool = True,
) -> Advice:
    """Without a band it takes a tenth of the time, and the band is the expected goodput only."""
    usable = _usable(inputs, wishes)
    spares = wishes.spares if wishes.spares is not None else best_spares(inputs, mix, phases, wishes, usable)
    found = tuple(_outlook(inputs, mix, phases, wishes, scheme, spares) for scheme in usable)
    best = _best_of(found, wishes.goodput or 0.0)
    return Advice(
        inputs=inputs,
        mix=mix,
        phases=phases,
        best=best,
        band=band(inputs, mix, best, evidence=evidence) if banded else (best.goodput, best.goodput),
        schemes=found,
        others=alternatives(inputs, best),
        rate_from=rate_from,
        aim=_aim(wishes),
        nearby=tuple(outlook(inputs, mix, phases, replace(best.choice, spares=count)) for count in _nearby(spares)),
    )


def _aim(wishes: Wishes) -> str:
    if wishes.spares is not None:
        return "as many spares as were asked for"
    if wishes.goodput is not None:
        return f"the fewest spares that bring {100 * wishes.goodput:g} % of goodput, whatever they cost"
    return "chosen for the least price of a useful hour: spares and waiting nodes are paid for, and nothing else counts"


def _nearby(spares: int) -> list[int]:
    """Numbers of spares to look at beside the chosen one."""
    step = max(1, round(spares / 4))
    return sorted({max(0, spares - step), spares, spares + step} | ({2} if not spares else set()))


def _usable(inputs: Inputs, wishes: Wishes) -> list[Scheme]:
    wanted = [wishes.scheme] if wishes.scheme is not None else list(SCHEMES)
    usable = [scheme for scheme in wanted if fits(scheme, inputs)]
    if usable:
        return usable
    small = min((scheme for scheme in wanted), key=lambda scheme: scheme.memory_share)
    if all(scheme.group > inputs.nodes for scheme in wanted):
        raise ConfigError(
            f"nodes={inputs.nodes!r} cannot be used: give at least {min(s.group for s in wanted)}, because a copy "
            "never lies on its rank's own node"
        )
    costs = costs_of(small, inputs)
    needed_gb = (costs.own_bytes + costs.held_bytes) / GB
    raise ConfigError(
        f"host_memory_gb={inputs.host_memory_gb!r} cannot be used: {inputs.ranks_per_node} ranks of "
        f"{inputs.state_gb:g} GB with {inputs.slots} slots and {small} need {needed_gb:.0f} GB per node; give at least "
        "that, or a smaller state_gb, or fewer slots (2 at least)"
    )


def best_spares(
    inputs: Inputs, mix: Sequence[Interruption], phases: Phases, wishes: Wishes, schemes: Sequence[Scheme]
) -> int:
    """The most useful work per node that is paid for, G / (N + S); or the fewest that bring the goodput asked for."""
    away = sum(each.per_s * each.away_s for each in mix if each.kind not in (PROCESS, RACK)) * inputs.nodes
    most = min(5000, math.ceil(away + 6 * math.sqrt(away) + 2 * inputs.nodes_per_rack + 4))
    plenty = _best_of([_outlook(inputs, mix, phases, wishes, scheme, most) for scheme in schemes])
    wanted, best = wishes.goodput, (0.0, 0)
    for spares in range(most + 1):
        if wanted is None and plenty.goodput / (inputs.nodes + spares) < best[0]:
            return -best[1]  # not even all that can be reached would be worth so many
        goodput = _outlook(inputs, mix, phases, wishes, plenty.choice.scheme, spares).goodput
        if wanted is not None and goodput >= wanted:
            return spares
        best = max(best, (goodput / (inputs.nodes + spares), -spares))
    if wanted is not None:
        raise ConfigError(
            f"goodput_at_least={100 * wanted:g} cannot be used: with these inputs {most} spares bring "
            f"{100 * plenty.goodput:.3f} %, and more bring no more; give less, or a shorter build_s, or a longer mtbf_h"
        )
    return -best[1]


def _outlook(
    inputs: Inputs, mix: Sequence[Interruption], phases: Phases, wishes: Wishes, scheme: Scheme, spares: int
) -> Outlook:
    rate = sum(each.per_s * (inputs.racks if each.kind == RACK else inputs.nodes) for each in mix)
    every = wishes.every if wishes.every is not None else best_interval(scheme, inputs, rate)
    durable_s = wishes.durable_s if wishes.durable_s is not None else MOST_DURABLE_S
    choice = Choice(spares=spares, scheme=scheme, every=every, durable_s=durable_s, racks_known=wishes.racks_known)
    seen = outlook(inputs, mix, phases, choice)
    if wishes.durable_s is not None:
        return seen
    return outlook(inputs, mix, phases, replace(choice, durable_s=best_durable_s(seen)))


def best_durable_s(seen: Outlook) -> float:
    """A checkpoint costs 2.6 % of the time that it is written in: sqrt(2 c / r), within sensible bounds."""
    cost, rate = 0.026 * seen.write_s, seen.fatal_per_s
    wanted = math.sqrt(2 * cost / rate) if rate > 0 else MOST_DURABLE_S
    return max(LEAST_DURABLE_S, 2 * seen.write_s, min(MOST_DURABLE_S, wanted))


def _best_of(found: Sequence[Outlook], wanted: float = 0.0) -> Outlook:
    top = max(seen.goodput for seen in found)
    alike = [seen for seen in found if seen.goodput >= max(top - ALIKE, min(top, wanted))]
    return min(alike, key=lambda seen: (seen.costs.held_bytes, seen.costs.wire_bytes))
