"""What an agent reports of its machine, so that what copies take can be compared with what there is."""

from __future__ import annotations

import socket
from typing import Any

import psutil

_MEGABITS_PER_GIGABYTE = 8000.0


def machine_facts(host: str) -> dict[str, Any]:
    """Memory of the machine, and the speed that the network card of this address reports."""
    return {"memory_bytes": psutil.virtual_memory().total, "link_gbps": _link_gbps(host)}


def _link_gbps(host: str) -> float | None:
    """Returns the speed in GB/s, or None where the system does not tell: loopback and virtual cards have no speed."""
    speeds = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.family == socket.AF_INET and each.address == host for each in addresses):
            megabits = speeds[name].speed if name in speeds else 0
            return megabits / _MEGABITS_PER_GIGABYTE if megabits > 0 else None
    return None
