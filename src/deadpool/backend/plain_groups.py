"""Process groups as torch makes them, for a torch in which nothing else can be relied on.

Which torch that is, trainer/process/torch_check.py decides. They have the interface of backend/groups.py. They cannot
be aborted or rebuilt, and no process rehearses: a process whose groups have failed ends, and fresh ones make them
again. Public names of torch only.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from deadpool.backend.backend_check import check_backend
from deadpool.backend.group_members import MembersOf, all_members
from deadpool.backend.nccl import backends as nccl


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
