"""All faults, by name. One file per family; a fault chooses whom it strikes, strikes, and knows when it is over."""

from __future__ import annotations

from deadpool.chaos.faults import coordinators, cuts, damage, kills, membership, stops
from deadpool.chaos.faults.fault import Fault
from deadpool.chaos.network import Network

FAULTS: dict[str, type[Fault]] = {
    fault.kind: fault for family in (kills, stops, cuts, damage, coordinators, membership) for fault in family.FAULTS
}


def possible(network: Network) -> list[str]:
    """Names, as often as the weights say. What cannot be done here is left out."""
    usable = (fault for fault in FAULTS.values() if fault.is_possible(network))
    return [fault.kind for fault in usable for _ in range(fault.weight)]
