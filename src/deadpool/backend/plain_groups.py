"""What is refused in a process group, and groups as torch makes them.

`check_backend` and `check_transports` refuse backends and settings with which groups could not be recovered; each
ConfigError says what is accepted.

`PlainGroups` process groups as torch makes them, for a torch in which nothing else can be relied on.

Which torch that is, trainer/process/torch_check.py decides. They have the interface of backend/groups.py. They
cannot be aborted or rebuilt, and no process rehearses: a process whose groups have failed ends, and fresh ones make
them again. Public names of torch only.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from deadpool.backend import nccl_backends as nccl
from deadpool.backend import torch_versions, world
from deadpool.backend.backend_factory import MembersOf, all_members
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


class PlainGroups:
    names: tuple[str, ...] = ()
    detached = False
    abort_count = 0
    can_rebuild = False
    shows_losses = False

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout = timedelta(seconds=timeout_s)

    @property
    def default_timeout(self) -> timedelta:
        return self._timeout

    def has_lost_a_peer(self) -> bool:
        return False

    def install(self) -> None:
        """Nothing sees a group over NCCL that the script makes later beside a default group over gloo."""
        if nccl.is_usable():
            nccl.prepare_environment()

    def uninstall(self) -> None:
        pass

    def init(self, *, backend: str, store: dist.Store, rank: int, world_size: int, detached: bool) -> None:
        assert not detached
        check_backend(backend)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=self._timeout)

    def read(self, store: dist.Store, key: str) -> bytes:
        return bytes(store.get(key))

    def keep_destroyed(self) -> None:
        pass

    def use_device(self, device: torch.device) -> None:
        pass

    def warm_up(self) -> None:
        pass

    def abort(self) -> int:
        return 0

    def mark(self) -> dict[str, Any]:
        """Returns a mark of the form that Groups.mark() has, without any group: a fresh process has those that its
        script makes.
        """
        return {"groups": {}, "made": 0, "used": []}

    def return_to(self, mark: dict[str, Any]) -> tuple[str, ...]:
        return ()

    def rebuild(
        self,
        store: dist.Store,
        prefix: str,
        *,
        after_abort: int | None = None,
        members: MembersOf = all_members,
    ) -> None:
        raise AssertionError("a process with plain groups ends instead of rebuilding them")
