"""What is done to a job, drawn from a seed before it starts: kinds of fault, their order, and when each one comes.

Whom a fault hits is drawn here too, as a share of whoever can be hit when its time has come: who that is depends
on the machine. No I/O.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Moment(Enum):
    """When a fault comes, seen from the one before it."""

    CALM = "calm"  # everything has healed
    SOON = "soon"  # some time after it, whatever happens then
    FENCE = "fence"  # in the recovery that it causes: survivors come to rest
    PLANNED = "planned"  # newcomers build and load
    PREPARED = "prepared"  # groups are made anew


IN_RECOVERY = (Moment.FENCE, Moment.PLANNED, Moment.PREPARED)
_MOMENTS = (Moment.CALM,) * 5 + (Moment.SOON,) * 3 + IN_RECOVERY

_CALM_DELAY_S = (0.2, 1.5)
_SOON_DELAY_S = (0.0, 2.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    kind: str
    moment: Moment
    delay_s: float  # after the moment
    pick: float  # 0 to 1: which of those that can be hit
    again: float  # 0 to 1: for what else there is to choose
    long: bool  # of what lasts: longer than it takes to be noticed


def draw(seed: str, count: int, kinds: Sequence[str]) -> list[Intent]:
    """`kinds` may name one several times: it comes so much more often. Each comes once before one comes twice."""
    rng = random.Random(seed)
    intents: list[Intent] = []
    bag: list[str] = []
    while len(intents) < count:
        if not bag:
            bag = _shuffled(rng, sorted(set(kinds))) + _shuffled(rng, _beyond_the_first(kinds))
        intents.append(_intent(rng, bag.pop(0), is_first=not intents))
    return intents


def _beyond_the_first(kinds: Sequence[str]) -> list[str]:
    rest = list(kinds)
    for kind in set(kinds):
        rest.remove(kind)
    return rest


def _shuffled(rng: random.Random, kinds: Sequence[str]) -> list[str]:
    return rng.sample(sorted(kinds), len(kinds))


def _intent(rng: random.Random, kind: str, *, is_first: bool) -> Intent:
    moment = Moment.CALM if is_first else rng.choice(_MOMENTS)
    delay_s = {Moment.CALM: rng.uniform(*_CALM_DELAY_S), Moment.SOON: rng.uniform(*_SOON_DELAY_S)}
    return Intent(
        kind=kind,
        moment=moment,
        delay_s=delay_s.get(moment, 0.0),
        pick=rng.random(),
        again=rng.random(),
        long=rng.random() < 0.6,
    )
