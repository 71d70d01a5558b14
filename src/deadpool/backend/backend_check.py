"""Refuses backends and settings with which groups could not be recovered; each ConfigError says what is accepted."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from deadpool.backend import torch_versions, world
from deadpool.backend.nccl import backends as nccl
from deadpool.backend.torch_versions import NCCL_NAMES
from deadpool.errors import ConfigError

_ACCEPTED = ", ".join(repr(name) for name in ("gloo", *NCCL_NAMES))
_WITHOUT_PEERS = frozenset({world.FAKE})  # backends that communicate with no peer: nothing to abort or to connect


def check_backend(backend: str) -> None:
    """Accepts one name, or one for each device, such as "cpu:gloo,cuda:nccl", in any order."""
    parts = [part.rpartition(":") for part in backend.lower().split(",")]
    known = all(name in world.ABORTABLE and device in ("", "cpu", "cuda") for device, _, name in parts)
    nccl_on_cpu = any(device == "cpu" and name in NCCL_NAMES for device, _, name in parts)
    if not known or nccl_on_cpu or (len(parts) > 1 and len({device for device, _, _ in parts} - {""}) < len(parts)):
        raise ConfigError(
            f"backend={backend!r} cannot be used: {_ACCEPTED} or one for each device, as in 'cpu:gloo,cuda:nccl', "
            "would be accepted"
        )
    if "nccl" in backend.lower():
        nccl.prepare_environment()
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        raise ConfigError("TORCH_DISTRIBUTED_DEBUG='DETAIL' cannot be used: 'OFF' or 'INFO' would be accepted")


def check_transports(group: world.JoinedGroup) -> None:
    unknown = sorted(group.backend_names - world.ABORTABLE - _WITHOUT_PEERS)
    if unknown:
        raise ConfigError(
            f"group {group.name!r} of {group.size} ranks cannot be protected: its backend {unknown[0]!r} cannot be "
            "aborted and made anew; 'gloo' or 'nccl' would be accepted"
        )
    for transport in group.transports:
        backend = group.backend(transport)
        if not isinstance(backend, _known_classes()):
            raise ConfigError(
                f"group {group.name!r} of {group.size} ranks cannot be protected: torch {torch.__version__} makes "
                f"{transport!r} by {type(backend).__name__}, which DeadPool does not know; another version of torch "
                "would be accepted"
            )


def _known_classes() -> tuple[Any, ...]:
    """A class that torch has made by itself, past those that are replaced, could be neither aborted nor made anew."""
    return torch_versions.ProcessGroupGloo, torch_versions.FakeProcessGroup, *torch_versions.nccl_classes()
