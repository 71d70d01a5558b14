"""When something breaks, and for how long it is away. All of it follows from the seed, and none of it from the job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from random import Random

from deadpool_lab.sim.endurance.setup import DAY_S, RACK, EnduranceSetup, Outage


@dataclass(frozen=True, slots=True, order=True)
class Hit:
    at: float
    where: int  # which node, or which rack
    away_s: float
    nth: int  # of the outages in the setup


def hits(setup: EnduranceSetup, seed: int) -> Iterator[tuple[Hit, Outage]]:
    """Yields hits in order of time. What hits a node that is away at that time has no effect, so every node that is
    there breaks at its own constant rate."""
    streams = [_stream(setup, nth, Random(f"{seed}/{outage.name}")) for nth, outage in enumerate(setup.outages)]
    return ((hit, setup.outages[hit.nth]) for hit in merge(*streams))


def places(setup: EnduranceSetup, outage: Outage) -> int:
    nodes = setup.nodes + setup.spares
    if outage.kind != RACK:
        return nodes
    return -(-nodes // setup.nodes_per_rack) if setup.nodes_per_rack else 0


def _stream(setup: EnduranceSetup, nth: int, random: Random) -> Iterator[Hit]:
    outage, at = setup.outages[nth], 0.0
    count = places(setup, outage)
    while count and outage.per_s > 0:
        at += random.expovariate(count * outage.per_s)
        if at >= setup.days * DAY_S:
            return
        away_s = random.expovariate(1.0 / outage.away_s) if outage.away_s else 0.0
        yield Hit(at, random.randrange(count), away_s, nth)
