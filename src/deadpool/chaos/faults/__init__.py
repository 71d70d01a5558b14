"""All faults, by name. One file per family; a fault chooses its target, injects itself, and knows when it is over."""

from __future__ import annotations

from collections.abc import Collection

from deadpool.chaos.faults import coordinators, cuts, damage, kills, membership, stops
from deadpool.chaos.faults.fault import Fault
from deadpool.chaos.network import Network

FAULTS: dict[str, type[Fault]] = {
    fault.kind: fault for family in (kills, stops, cuts, damage, coordinators, membership) for fault in family.FAULTS
}


def possible(network: Network, holders: int, kinds: Collection[str] = ()) -> list[str]:
    """Names of these kinds, or of all, each as often as its weight says. Faults that cannot be injected here are left
    out."""
    wanted = (fault for kind, fault in FAULTS.items() if not kinds or kind in kinds)
    usable = (fault for fault in wanted if fault.is_possible(network) and fault.holders <= holders)
    return [fault.kind for fault in usable for _ in range(fault.weight)]
