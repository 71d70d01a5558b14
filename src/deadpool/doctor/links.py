"""Which nodes are paired to be measured, and which of the measured links are too slow. Values only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from deadpool.doctor.finding import Facts, Finding, note

LEAST_GBPS = 0.1
"""A network of 1 Gbit/s carries more."""
_SHARE_OF_USUAL = 0.2
_NETWORK_SHARE = 0.8
"""The share above which the network held a stream up: 0.9 and more was seen on limited links, 0.75 at most on busy
machines.
"""
_ALL_UP_TO = 64


@dataclass(frozen=True, slots=True)
class Link:
    source: str
    target: str
    gbps: float
    network_share: float = 1.0  # of the time, in which the network was what held it up

    def facts(self) -> Facts:
        return {
            "from": self.source,
            "to": self.target,
            "gbps": round(self.gbps, 4),
            "network_share": round(self.network_share, 2),
        }


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
    """A link that was slow because a machine was busy is worth a note only."""
    return [_slow(link, _usual(links), least_gbps) for link in too_slow(links, least_gbps)]


def too_slow(links: Sequence[Link], least_gbps: float) -> list[Link]:
    bound = max(least_gbps, _SHARE_OF_USUAL * _usual(links))
    return [link for link in links if link.gbps < bound]


def _usual(links: Sequence[Link]) -> float:
    return statistics.median([link.gbps for link in links]) if links else 0.0


def _slow(link: Link, usual: float, least_gbps: float) -> Finding:
    bound = f"less than {least_gbps:g} GB/s" if link.gbps < least_gbps else f"the others reach {usual:.2f} GB/s"
    what = f"bytes pass from {link.source} to {link.target} at {link.gbps:.3f} GB/s: {bound}"
    if link.network_share < _NETWORK_SHARE:
        busy = f"{what}; its network was not what held it up"
        return note("bandwidth", busy, "ask again when both machines have a free processor").at(link.source)
    do = "look at its cable, switch port, duplex and limits (ethtool, tc), or give the --interface of the fast network"
    return Finding(check="bandwidth", node=link.source, what=what, do=do)
