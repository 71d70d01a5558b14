"""Which address a command's process listens on, from --host, --interface or neither."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Awaitable, Callable

from deadpool.config.job_config import JobConfig
from deadpool.errors import ConfigError
from deadpool.protocol.identity import LAST_PORT, Address
from deadpool.wire.deadline import address_of, address_towards


def at_interface(settings: JobConfig) -> JobConfig:
    """The settings of a coordinator or a whole job, with the interface's address in place of the host."""
    return dataclasses.replace(settings, host=address_of(settings.interface)) if settings.interface else settings


def own_address(host: str | None, interface: str | None, coordinator: Address) -> str:
    """The address of an agent that its peers get: unless given, the one that leads to the coordinator."""
    if host and interface:
        raise ConfigError(f"host={host!r} and interface={interface!r} cannot be used together: give one of them")
    return host or (address_of(interface) if interface else address_towards(coordinator))


async def listen(start: Callable[[str, int], Awaitable[Address]], host: str, port: int) -> Address:
    """Calls `start`. ConfigError: the port is taken, or there can be no such one."""
    try:
        return await start(host, port)
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            what_now = "end the process that listens there, or give another --port"
            raise ConfigError(f"port={port} of {host} cannot be used, it is taken: {what_now}") from None
        if isinstance(error, OverflowError):
            raise ConfigError(
                f"port={port} cannot be used: give another one of at most {LAST_PORT}, or 0 for any free one"
            ) from None
        reason = str(error.strerror or error).partition(" (while")[0]
        raise ConfigError(
            f"host={host!r}, port={port} cannot be used ({reason}): give an address of this machine, and a "
            "port that this user may listen on"
        ) from None
