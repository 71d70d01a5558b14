"""Which address a command's process listens on, from --host, --interface or neither."""

from __future__ import annotations

import dataclasses

from deadpool.config import JobConfig
from deadpool.errors import ConfigError
from deadpool.protocol.topology import Address
from deadpool.wire.interfaces import address_of, address_towards


def at_interface(settings: JobConfig) -> JobConfig:
    """The settings of a coordinator or a whole job, with the interface's address in place of the host."""
    return dataclasses.replace(settings, host=address_of(settings.interface)) if settings.interface else settings


def own_address(host: str | None, interface: str | None, coordinator: Address) -> str:
    """The address of an agent that its peers get: unless given, the one that leads to the coordinator."""
    if host and interface:
        raise ConfigError(f"host={host!r} and interface={interface!r}: give one of them")
    return host or (address_of(interface) if interface else address_towards(coordinator))
