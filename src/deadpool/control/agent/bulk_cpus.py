"""The CPUs that the agents' threads keep to while they hash and move copies.

Many training steps last as long as one thread takes to launch their kernels. Threads that move gigabytes slow it down
although other CPUs are idle: the siblings of a core share its caches and units, and a virtual machine does not say
which CPUs are siblings. So on a machine with enough cores they keep to a quarter of them, whole cores next to each
other, and leave the rest alone (docs/benchmarks.md has what that changes).
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from deadpool.config.values import parse_cpus
from deadpool.errors import ConfigError

SYSTEM = Path("/sys/devices/system")
_SHARE = 4
_ENOUGH_CORES = 8
"""The number of cores below which the copies would take too long on a quarter of them."""


def bulk_cpus(given: str, system: Path = SYSTEM) -> frozenset[int]:
    """`given` is the user's setting. Empty: any CPU."""
    usable = frozenset(os.sched_getaffinity(0))
    if not given:
        return _quarter(usable, system)
    chosen = parse_cpus(given) & usable
    if not chosen:
        known = ",".join(map(str, sorted(usable)))
        raise ConfigError(f"bulk_cpus={given!r} cannot be used: give some of this node's CPUs, {known}")
    return chosen


def _quarter(usable: frozenset[int], system: Path) -> frozenset[int]:
    """The last cores of each NUMA node in turn, because copies lie in the memory of several."""
    cores = {_siblings(cpu, system) & usable for cpu in usable}
    if len(cores) < _ENOUGH_CORES:
        return frozenset()
    nodes = [frozenset(node) for node in _numa_nodes(system)] or [usable]
    last_first = [sorted((core for core in cores if core <= node), key=min, reverse=True) for node in nodes]
    in_turn = [core for together in itertools.zip_longest(*last_first) for core in together if core is not None]
    return frozenset().union(*in_turn[: len(cores) // _SHARE])


def _siblings(cpu: int, system: Path) -> frozenset[int]:
    return _read_cpus(system / f"cpu/cpu{cpu}/topology/thread_siblings_list") or frozenset([cpu])


def _numa_nodes(system: Path) -> list[frozenset[int]]:
    return [cpus for path in sorted(system.glob("node/node*/cpulist")) if (cpus := _read_cpus(path))]


def _read_cpus(path: Path) -> frozenset[int]:
    try:
        return parse_cpus(path.read_text().strip())
    except (OSError, ConfigError):
        return frozenset()  # a container may hide it, or show something else
