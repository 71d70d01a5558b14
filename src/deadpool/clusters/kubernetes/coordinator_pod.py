"""What a coordinator has to know of its pod before it can listen: its place, and that its name leads to it."""

from __future__ import annotations

import dataclasses
import os
import socket
import time

from deadpool.config.job_config import JobConfig
from deadpool.errors import ConfigError
from deadpool.protocol.topology import Address

_NAME_S = 120.0


def place(settings: JobConfig, index: int) -> JobConfig:
    """The settings with the address that the list of coordinators has for this one."""
    places = settings.coordinator_places
    if not 0 <= index < len(places):
        raise ConfigError(
            f"index={index} cannot be used: give a place in coordinators={settings.coordinators!r}, from 0 on"
        )
    own = Address.parse(places[index])
    return dataclasses.replace(settings, host=own.host, port=own.port)


def await_own_name(host: str, deadline_s: float = _NAME_S) -> None:
    """The cluster's DNS learns of a new pod with a delay. An earlier pod of this name had another address."""
    own, deadline = os.environ.get("POD_IP"), time.monotonic() + deadline_s
    while (found := _resolved(host)) is None or (own is not None and own != found):
        if time.monotonic() > deadline:
            raise ConfigError(
                f"host={host!r} leads to {found or 'nothing'}, and this pod is {own}: look at the job's Service and at "
                "the cluster's DNS"
            )
        time.sleep(0.2)


def _resolved(host: str) -> str | None:
    try:
        return socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0]  # type: ignore[return-value]
    except OSError:
        return None
