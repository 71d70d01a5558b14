"""Priority and CPUs of the threads that hash and move copies.

`bulk_cpus`: the CPUs that the agents' threads keep to while they hash and move copies.

Many training steps last as long as one thread takes to launch their kernels. Threads that move gigabytes slow it
down although other CPUs are idle: the siblings of a core share its caches and units, and a virtual machine does not
say which CPUs are siblings. So on a machine with enough cores they keep to a quarter of them, whole cores next to
each other, and leave the rest alone (docs/benchmarks.md has what that changes).

`ThreadPriority`: Priority and CPUs of the threads that hash and move copies, so that this work gives way to
training.

Both are set for threads and not for the agent's process: its heartbeats must be in time, and its trainers would
start with the same priority. A thread passes both on to the threads that it starts.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class ThreadPriority:
    nice: int
    cpus: frozenset[int] = frozenset()  # empty: any CPU

    def apply(self) -> None:
        """To the client thread, from here on."""
        thread = threading.get_native_id()
        # An engine may have started the agent with less priority already, and an ordinary user cannot take that back.
        own = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, max(own, self.nice))
        if self.cpus:
            with contextlib.suppress(OSError):  # they were taken away since: any other will do
                os.sched_setaffinity(thread, self.cpus)
