"""Makes the backends of process groups: real ones, or those of a rehearsal, which communicate with no peer.

Every real backend is made under the supervisor, so that an abort can end the wait for its peers. Main thread only.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from deadpool.backend import torch_versions, world
from deadpool.backend.gloo.backends import GlooFactory
from deadpool.backend.group_members import MembersOf
from deadpool.backend.nccl import backends as nccl
from deadpool.backend.nccl.communicators import NcclCommunicators
from deadpool.backend.supervisor import Supervisor
from deadpool.errors import ConfigError, GroupError

_DEFAULT_TIMEOUT: timedelta = getattr(dist.distributed_c10d, "default_pg_timeout", timedelta(minutes=30))


class BackendFactory:
    """While `detached` this process rehearses, and every backend it makes is fake or has no peers."""

    def __init__(self, gloo: GlooFactory, communicators: NcclCommunicators, supervisor: Supervisor) -> None:
        self._gloo, self._communicators, self._supervisor = gloo, communicators, supervisor
        self.detached = False

    # --- in place of torch's constructors, with their arguments ------------------------------------------------------

    def make_gloo(
        self, store: dist.Store, rank: int, size: int, timeout: timedelta = _DEFAULT_TIMEOUT, **more: Any
    ) -> Any:
        refuse_unknown(more)
        if self.detached:
            return self._supervisor.run(
                "making a fake group", lambda: self._gloo.make_unconnected(rank, size, timeout), connections=0
            )
        return self._supervisor.run(
            "making a group", lambda: self._gloo.connect(store, rank, size, timeout), connections=size - 1
        )

    def make_nccl(
        self,
        kind: Any,
        store: dist.Store,
        rank: int,
        size: int,
        options: Any,
        device: torch.device | None = None,
        **more: Any,
    ) -> Any:
        """`kind` is one of torch's classes; only the newer one is given a device."""
        nccl.prepare_environment()  # the default group may have none over NCCL
        refuse_unknown({"enable_reconfigure": getattr(options, "enable_reconfigure", False), **more})
        recipe = nccl.Recipe.of(kind, options, device)
        if self.detached:
            return self._communicators.make_unconnected(recipe, rank, size)
        return self._communicators.make("making a group", recipe, store, rank, size)

    def cover_with_fake(self, group: world.JoinedGroup) -> None:
        """In a rehearsal, no collective of a new group may reach the real backend beneath."""
        if self.detached and not world.is_faked(group.process_group):
            world.put_fake(group.process_group, self._gloo.make_fake(group.rank, group.size, group.timeout))

    # --- at a rebuild ------------------------------------------------------------------------------------------------

    def remake(
        self, group: world.JoinedGroup, store: dist.Store, wait_s: float, members_of: MembersOf
    ) -> dict[str, Any]:
        """New connected backends for the group, by transport."""
        members = members_of(group.global_ranks)
        if members is None:
            return {transport: self._gloo.make_refusing(group.rank, group.size) for transport in group.transports}
        return {transport: self._remake(transport, group, store, wait_s, members) for transport in group.transports}

    def _remake(
        self, transport: str, group: world.JoinedGroup, store: dist.Store, wait_s: float, members: list[int]
    ) -> Any:
        if transport in torch_versions.NCCL_NAMES:
            if len(members) < group.size:
                raise GroupError(f"group {group.name} has ranks without a process, and NCCL was not tried with that")
            return self._communicators.remake(group, store, wait_s)
        rank, size, timeout = members.index(group.global_ranks[group.rank]), len(members), group.timeout
        backend = self._supervisor.run(
            f"rebuilding group {group.name}",
            lambda: self._gloo.connect(store, rank, size, timeout),
            connections=size - 1,
            wait_s=wait_s,
        )
        if torch_versions.members_agree_on_sequence_numbers():
            backend._set_sequence_number_for_group()
        return backend


def refuse_unknown(keywords: Mapping[str, Any]) -> None:
    """A newer torch may pass more than the constructors took when this was written. What is switched off or empty does
    no harm (torchtitan 0.3 passes _ranks=[]); the rest would be ignored, and the group would be another one than the
    script asked for."""
    for name, value in keywords.items():
        is_empty = isinstance(value, list | tuple | dict | set | str) and not value
        if value is not None and value is not False and not is_empty:
            raise ConfigError(
                f"a process group with {name}={value!r} cannot be used: DeadPool would not know how to make it anew; "
                "leave the argument out"
            )
