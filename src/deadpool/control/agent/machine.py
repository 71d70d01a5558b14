"""The machine of an agent: whether it is leased, what it is, and whether it is ready.

`machine_facts`: what an agent reports of its machine, so that what copies take can be compared with what there is.

`ReadyFile`: a file that tells the machine's own scheduler whether a node is ready, e.g. the readiness probe of a
pod.

It exists while a coordinator has accepted the node and every trainer there trains or is parked. It stays when the
coordinator dies: that is no reason to take the node for broken.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TypedDict

import psutil

from deadpool.protocol.agent.trainers.trainers import TrainerState

_MEGABITS_PER_GIGABYTE = 8000.0


class MachineFacts(TypedDict):
    memory_bytes: int
    link_gbps: float | None


def machine_facts(host: str) -> MachineFacts:
    """Memory of the machine, and the speed that the network card of this address reports."""
    return MachineFacts(memory_bytes=psutil.virtual_memory().total, link_gbps=_link_gbps(host))


def _link_gbps(host: str) -> float | None:
    """Returns the speed in GB/s, or None where the system does not tell: loopback and virtual cards have no speed."""
    speeds = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.family == socket.AF_INET and each.address == host for each in addresses):
            megabits = speeds[name].speed if name in speeds else 0
            return megabits / _MEGABITS_PER_GIGABYTE if megabits > 0 else None
    return None


READY_STATES = (TrainerState.SEATED, TrainerState.PARKED, TrainerState.COLD)
"""A cold trainer cannot rehearse this script, and is as ready as it will be."""


class ReadyFile:
    def __init__(self, path: Path | None) -> None:
        """None: nobody asks."""
        self._path, self._exists = path, False
        if path is not None:
            path.unlink(missing_ok=True)  # that of a process before this one

    def set(self, ready: bool) -> None:
        if self._path is None or ready == self._exists:
            return
        if ready:
            self._path.touch()
        else:
            self._path.unlink(missing_ok=True)
        self._exists = ready
