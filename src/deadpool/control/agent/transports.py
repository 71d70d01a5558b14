"""Which way the bytes of copies take from and to this node: by TCP, or by NIXL where that is there (`--transport`)."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from deadpool.config.checks import NIXL, TCP
from deadpool.control.agent.threads import ThreadPriority
from deadpool.errors import ConfigError
from deadpool.events.event import Event
from deadpool.host.rdma import INSTALL, nixl_build, rdma_devices
from deadpool.snapshot.transfer.nixl_transport import NixlTransport
from deadpool.snapshot.transfer.transport import OverTcp, Transport


class Way(Enum):
    TCP = "tcp"
    NIXL = "nixl"


def chosen_way(setting: str, *, encrypted: bool) -> Way:
    """Raises ConfigError where NIXL is asked for and cannot be used. `encrypted`: the job uses TLS."""
    if setting == TCP:
        return Way.TCP
    if setting == NIXL:
        if encrypted:
            raise ConfigError("transport='nixl' cannot be used with tls: what NIXL reads is not encrypted; give tcp")
        if nixl_build() is None:
            raise ConfigError(f"transport='nixl' needs the package nixl: {INSTALL}, or give auto or tcp")
        return Way.NIXL
    return Way.NIXL if not encrypted and rdma_devices() and nixl_build() is not None else Way.TCP


def make_transport(way: Way, note: Callable[[Event], None], priority: ThreadPriority) -> Transport:
    """`note` is told, from any thread, when NIXL works, and why bytes go by TCP although it was chosen."""
    if way is Way.TCP:
        return OverTcp()
    transport = NixlTransport(
        lambda reason: note(Event(what="copies_by_tcp", detail={"reason": reason})),
        on_ready=lambda: note(Event(what="copies_by_nixl", detail={"devices": rdma_devices()})),
        prepare=priority.apply,
    )
    transport.start()
    return transport
