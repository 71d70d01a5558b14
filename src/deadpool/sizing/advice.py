"""The choice among schemes, beside other systems, with its spread.

`Alternative`: the same cluster and pool of spares under other systems, with what is assumed of each. Their intervals
are chosen as well for them as ours for us.

`band` and `draws`: how much one run differs from what is expected: the same rates, drawn many times.

A draw has its own failures and times away, and its own rate where the rate is not known for certain. It knows
nothing of the formula for shortages, so that its mean also checks the model.

`Wishes` and `Advice`: the choice: what gives the most useful work for the price, among what fits the memory.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from deadpool.errors import ConfigError
from deadpool.sizing.audits import AuditInterval, audit_interval
from deadpool.sizing.failure_history import PLANNED, PROCESS, RACK, InterruptionRate
from deadpool.sizing.goodput import Choice, Forecast, outlook, survives_a_rack
from deadpool.sizing.inputs import GB, Inputs, Phases
from deadpool.sizing.protection import SCHEMES, ProtectionScheme, best_interval, costs_of, fits

TORCHRUN_RESTART_S = 22.8
PEER_RECOVERY_S = (20.0, 150.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    name: str
    goodput: float
    assumed: str


def alternatives(inputs: Inputs, ours: Forecast) -> tuple[Alternative, ...]:
    slow, fast = _standby(inputs, ours, PEER_RECOVERY_S[1]), _standby(inputs, ours, PEER_RECOVERY_S[0])
    return (_torchrun(inputs, ours), slow, fast)


def _torchrun(inputs: Inputs, ours: Forecast) -> Alternative:
    """Young's interval: a save of s seconds every sqrt(2 s / r) loses least."""
    faults, planned = _rates(ours)
    save_s, rate = ours.write_s, faults + planned
    every_s = max(save_s, inputs.step_s, math.sqrt(2 * save_s / rate)) if rate > 0 else inputs.seconds
    down_s = TORCHRUN_RESTART_S + inputs.build_s + ours.read_s
    redone = faults * every_s / 2
    goodput = (1 - ours.short.share) * max(0.0, 1 - redone) * math.exp(-rate * down_s) / (1 + save_s / every_s)
    assumed = (
        f"all workers restart: {TORCHRUN_RESTART_S:g} s (measured with 4 ranks, docs/benchmarks.md) + "
        f"{inputs.build_s:g} s to build + {ours.read_s:.0f} s to read; training stands still for {save_s:.0f} s per "
        f"save, every {every_s / 60:.0f} min (Young); half of that is redone; same spares; no time until a "
        "hang is noticed"
    )
    return Alternative(name="torchrun + checkpoints", goodput=goodput, assumed=assumed)


def _standby(inputs: Inputs, ours: Forecast, down_s: float) -> Alternative:
    faults, planned = _rates(ours)
    redone = faults * 1.5 * inputs.step_s
    goodput = (1 - ours.short.share) * max(0.0, 1 - redone) * math.exp(-(faults + planned) * down_s)
    system = "TrainMover, ~20 s on 1,024 GPUs" if down_s < 60 else "FlashRecovery, 150 s on 4,800 devices"
    assumed = (
        f"{down_s:g} s per interruption as published ({system}; HyperPod and TorchPass: under 2 minutes), one and a "
        "half steps redone, nothing for keeping copies (NVRx with a copy in every step was measured at 2.08 times the "
        "step time); same spares"
    )
    return Alternative(name=f"warm standby, {down_s:g} s", goodput=goodput, assumed=assumed)


def _rates(ours: Forecast) -> tuple[float, float]:
    """Returns the rates of faults and of planned interruptions, for the whole job."""
    named = [kind for kind in ours.kinds if not kind.loses_all]
    planned = sum(kind.per_s for kind in named if kind.name == PLANNED)
    return sum(kind.per_s for kind in named) - planned, planned


DRAWS = 200
MOST_EVENTS = 2_000_000
"""The most events in all draws: there are fewer draws where there are many failures."""


def band(
    inputs: Inputs, mix: Sequence[InterruptionRate], expected: Forecast, *, evidence: float | None, seed: int = 0
) -> tuple[float, float]:
    """Returns the goodputs between which nine of ten runs end. `evidence` is the number of failures from which the rate
    was estimated.
    """
    found = sorted(draws(inputs, mix, expected, evidence=evidence, seed=seed))
    edge = max(0, round(0.05 * len(found)) - 1)
    return found[edge], found[-1 - edge]


def draws(
    inputs: Inputs, mix: Sequence[InterruptionRate], expected: Forecast, *, evidence: float | None = None, seed: int = 0
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


def _draw(inputs: Inputs, mix: Sequence[InterruptionRate], expected: Forecast, factor: float, random: Random) -> float:
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


LEAST_DURABLE_S, MOST_DURABLE_S = 600.0, 4 * 3600.0
ALIKE = 1e-5
"""Schemes whose goodput differs by less are alike: the one with less memory is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user has chosen already; None: to be recommended."""

    spares: int | None = None
    scheme: ProtectionScheme | None = None
    every: int | None = None
    durable_s: float | None = None
    racks_known: bool = True
    goodput: float | None = None  # at least, with as few spares as bring it


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    inputs: Inputs
    mix: tuple[InterruptionRate, ...]
    phases: Phases
    best: Forecast
    band: tuple[float, float]
    schemes: tuple[Forecast, ...]  # that fit, at the same spares and the best interval of each
    others: tuple[Alternative, ...]
    rate_from: str
    aim: str  # what the number of spares was chosen for
    nearby: tuple[Forecast, ...] = ()  # other numbers of spares, the rest as recommended

    @property
    def audits(self) -> AuditInterval:
        load_s, every = self.best.costs.own_load_s, self.best.choice.every
        return audit_interval(self.inputs, self.phases, load_s=load_s, capture_every=every)

    @property
    def survives_rack(self) -> bool:
        return survives_a_rack(self.inputs, self.best.choice)


def advise(
    inputs: Inputs,
    mix: tuple[InterruptionRate, ...],
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


def _usable(inputs: Inputs, wishes: Wishes) -> list[ProtectionScheme]:
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
    inputs: Inputs, mix: Sequence[InterruptionRate], phases: Phases, wishes: Wishes, schemes: Sequence[ProtectionScheme]
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
    inputs: Inputs,
    mix: Sequence[InterruptionRate],
    phases: Phases,
    wishes: Wishes,
    scheme: ProtectionScheme,
    spares: int,
) -> Forecast:
    rate = sum(each.per_s * (inputs.racks if each.kind == RACK else inputs.nodes) for each in mix)
    every = wishes.every if wishes.every is not None else best_interval(scheme, inputs, rate)
    durable_s = wishes.durable_s if wishes.durable_s is not None else MOST_DURABLE_S
    choice = Choice(spares=spares, scheme=scheme, every=every, durable_s=durable_s, racks_known=wishes.racks_known)
    seen = outlook(inputs, mix, phases, choice)
    if wishes.durable_s is not None:
        return seen
    return outlook(inputs, mix, phases, replace(choice, durable_s=best_durable_s(seen)))


def best_durable_s(seen: Forecast) -> float:
    """A checkpoint costs 2.6 % of the time that it is written in: sqrt(2 c / r), within sensible bounds."""
    cost, rate = 0.026 * seen.write_s, seen.fatal_per_s
    wanted = math.sqrt(2 * cost / rate) if rate > 0 else MOST_DURABLE_S
    return max(LEAST_DURABLE_S, 2 * seen.write_s, min(MOST_DURABLE_S, wanted))


def _best_of(found: Sequence[Forecast], wanted: float = 0.0) -> Forecast:
    top = max(seen.goodput for seen in found)
    alike = [seen for seen in found if seen.goodput >= max(top - ALIKE, min(top, wanted))]
    return min(alike, key=lambda seen: (seen.costs.held_bytes, seen.costs.wire_bytes))
