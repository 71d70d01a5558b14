"""Which address of this machine to listen on: that of a named interface, or the one that leads to the coordinator.

A process never listens on all of them, unless it was started with --host 0.0.0.0.
"""

from __future__ import annotations

import socket

import psutil

from deadpool.errors import ConfigError
from deadpool.protocol.topology import Address

_COLLECTIVES = "NCCL_SOCKET_IFNAME"


def address_of(interface: str) -> str:
    """Returns the first IPv4 address of an interface."""
    known = _addresses()
    if interface not in known:
        listed = ", ".join(f"{name} ({address})" for name, address in sorted(known.items()))
        raise ConfigError(
            f"interface={interface!r} is not one with an IPv4 address on this machine: give one of {listed}"
        )
    return known[interface]


def address_towards(peer: Address) -> str:
    """The one that packets to `peer` leave from; nothing is sent to find out."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((peer.host, peer.port))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"no way from here to {peer}: {error.strerror or error}. Correct that address, or give this machine's own "
            "with --host or --interface"
        ) from error


def collective_variables(interface: str) -> dict[str, str]:
    """Returns the variables that keep NCCL's sockets to the interface as well. Gloo's listen where the agent does."""
    return {_COLLECTIVES: f"={interface}"} if interface else {}


def _addresses() -> dict[str, str]:
    found = {}
    for name, addresses in psutil.net_if_addrs().items():
        first = next((each.address for each in addresses if each.family == socket.AF_INET), None)
        if first is not None:
            found[name] = first
    return found
