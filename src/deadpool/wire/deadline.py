"""Limits and addresses of connections.

`PeerDeadline`: how long a peer may take for one frame or handshake as a whole, however many bytes it sends
meanwhile.

A stall of this process counts as one wait at most, because it is not the peer that is slow then.

`notice_silence`: Links over which little is said: the kernel finds out that the other machine is gone, which ended
without a word.

`address_of`, `address_towards` and `collective_variables`: which address of this machine to listen on: that of a
named interface, or the one that leads to the coordinator.

A process never listens on all of them, unless it was started with --host 0.0.0.0.
"""

from __future__ import annotations

import asyncio
import socket

import psutil

from deadpool.errors import ConfigError
from deadpool.protocol.identity import Address

_WAITS = 4


class PeerDeadline:
    """The caller waits for `wait_limit_s` at most and then says how long it waited."""

    def __init__(self, limit_s: float) -> None:
        self.wait_limit_s = limit_s / _WAITS  # the longest that one wait should last
        self._left_s = limit_s

    def waited(self, seconds: float) -> None:
        self._left_s -= min(seconds, self.wait_limit_s)

    @property
    def over(self) -> bool:
        return self._left_s <= 0


_IDLE_S, _PROBE_EVERY_S, _PROBES = 10, 5, 3


def notice_silence(writer: asyncio.StreamWriter) -> None:
    """The connection ends within half a minute if the machine at its other end does not answer."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * (_IDLE_S + _PROBES * _PROBE_EVERY_S))


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
