"""Which nodes are paired to be measured, and which of the measured links are too slow. Values only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from deadpool.clusters.doctor.finding import Facts, Finding

LEAST_GBPS = 0.1
"""A network of 1 Gbit/s carries more."""
_SHARE_OF_USUAL = 0.2
_ALL_UP_TO = 64


@dataclass(frozen=True, slots=True)
class Link:
    source: str
    target: str
    gbps: float

    @property
    def text(self) -> str:
        return f"bytes pass from {self.source} to {self.target} at "

    def facts(self) -> Facts:
        return {"from": self.source, "to": self.target, "gbps": round(self.gbps, 4)}


def peers_of(index: int, count: int) -> list[int]:
    """Whom a node has to reach: all others, and in a large job some near and some far."""
    if count <= _ALL_UP_TO:
        return [other for other in range(count) if other != index]
    distances = [2**power for power in range(count.bit_length()) if 2**power < count]
    return sorted({(index + sign * distance) % count for distance in distances for sign in (1, -1)} - {index})


def ring(count: int) -> list[list[tuple[int, int]]]:
    """Rounds of pairs (source, target), in each of which a node sends once and receives once."""
    if count < 2:
        return []
    forward = [(index, (index + 1) % count) for index in range(count)]
    return [forward] if count == 2 else [forward, [(target, source) for source, target in forward]]


def slow_links(links: Sequence[Link], least_gbps: float) -> list[Finding]:
    usual = statistics.median([link.gbps for link in links]) if links else 0.0
    bound = max(least_gbps, _SHARE_OF_USUAL * usual)
    return [_slow(link, usual, least_gbps) for link in links if link.gbps < bound]


def _slow(link: Link, usual: float, least_gbps: float) -> Finding:
    bound = f"less than {least_gbps:g} GB/s" if link.gbps < least_gbps else f"the others reach {usual:.2f} GB/s"
    what = f"{link.text}{link.gbps:.3f} GB/s: {bound}"
    do = "look at its cable, switch port, duplex and limits (ethtool, tc), or give the --interface of the fast network"
    return Finding(check="bandwidth", node=link.source, what=what, do=do)
