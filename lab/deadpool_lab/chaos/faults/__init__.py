"""All faults, by name. One file per family; a fault chooses its target, injects itself, and knows when it is over."""

from __future__ import annotations

from collections.abc import Collection

from deadpool_lab.chaos.faults import files, nodes, processes
from deadpool_lab.chaos.faults.fault import Fault
from deadpool_lab.chaos.surroundings.disk import Disk
from deadpool_lab.chaos.surroundings.network import Network

FAULTS: dict[str, type[Fault]] = {
    fault.kind: fault
    for family in (processes.FAULTS, nodes.CUTS, files.FAULTS, nodes.MEMBERSHIP, nodes.ILLNESSES)
    for fault in family
}
ILLNESSES = frozenset(fault.kind for fault in nodes.ILLNESSES)
"""The kinds of illness, which need agents that read files written by the run."""
OF_ADAPTIVE_RUNS = ILLNESSES | {"kill_node", "kill_trainer", "crash_trainer", "stop_agent", "stop_trainer", "stop_node"}
"""Permanent faults (a machine is gone for the rest), transient ones (a process, or a stop for a while), illnesses."""


def possible(network: Network, disk: Disk, holders: int, kinds: Collection[str] = ()) -> list[str]:
    """Names of these kinds, or of all, each as often as its weight says. Faults that cannot be injected here are left
    out."""
    wanted = (fault for kind, fault in FAULTS.items() if (kind in kinds if kinds else kind not in ILLNESSES))
    usable = (fault for fault in wanted if fault.is_possible(network, disk) and fault.holders <= holders)
    return [fault.kind for fault in usable for _ in range(fault.weight)]
