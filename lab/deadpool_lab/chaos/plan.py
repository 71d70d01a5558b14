"""The faults of a run, drawn from a seed before it starts: their kinds, their order, and when each one comes.

What a fault hits is drawn here too, as a number of 0 to 1 that chooses among the targets that exist when its time has
come. No I/O.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum


class Moment(Enum):
    """When a fault comes, relative to the one before it."""

    CALM = "calm"  # the job has recovered from all faults
    SOON = "soon"  # some time after it, whatever the job is doing
    FENCE = "fence"  # in the recovery that it causes, while survivors come to rest
    PLANNED = "planned"  # while newcomers build and load
    PREPARED = "prepared"  # while groups are rebuilt


IN_RECOVERY = (Moment.FENCE, Moment.PLANNED, Moment.PREPARED)
_MOMENTS = (Moment.CALM,) * 5 + (Moment.SOON,) * 3 + IN_RECOVERY

_CALM_DELAY_S = (0.2, 1.5)
_SOON_DELAY_S = (0.0, 2.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    kind: str
    moment: Moment
    delay_s: float  # after the moment
    pick: float  # 0 to 1: chooses among the possible targets
    again: float  # 0 to 1: for a second choice
    long: bool  # a fault that lasts: longer than its detection takes


def draw(seed: str, count: int, kinds: Sequence[str], *, one_by_one: bool = False) -> list[Intent]:
    """A kind that is named several times comes more often. Each kind comes once before one comes twice."""
    rng = random.Random(seed)
    intents: list[Intent] = []
    bag: list[str] = []
    while len(intents) < count:
        if not bag:
            bag = _shuffled(rng, sorted(set(kinds))) + _shuffled(rng, _beyond_the_first(kinds))
        intents.append(_intent(rng, bag.pop(0), calm=one_by_one or not intents))
    return intents


def full_disk(full_s: float) -> list[Intent]:
    """The run folder is full for so long; a node is lost after a third of that, and a trainer after two thirds."""
    first = Intent(kind="disk_full", moment=Moment.CALM, delay_s=0.0, pick=0.0, again=0.0, long=True)
    later = replace(first, moment=Moment.SOON, delay_s=full_s / 3)
    return [first, replace(later, kind="kill_node"), replace(later, kind="kill_trainer")]


def _beyond_the_first(kinds: Sequence[str]) -> list[str]:
    rest = list(kinds)
    for kind in set(kinds):
        rest.remove(kind)
    return rest


def _shuffled(rng: random.Random, kinds: Sequence[str]) -> list[str]:
    return rng.sample(sorted(kinds), len(kinds))


def _intent(rng: random.Random, kind: str, *, calm: bool) -> Intent:
    moment = Moment.CALM if calm else rng.choice(_MOMENTS)
    delay_s = {Moment.CALM: rng.uniform(*_CALM_DELAY_S), Moment.SOON: rng.uniform(*_SOON_DELAY_S)}
    return Intent(
        kind=kind,
        moment=moment,
        delay_s=delay_s.get(moment, 0.0),
        pick=rng.random(),
        again=rng.random(),
        long=rng.random() < 0.6,
    )
