"""Makes the backends of process groups: real ones, or those of a rehearsal, which communicate with no peer.

Every real backend is made under the supervisor, so that an abort can end the wait for its peers. Main thread only.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from deadpool.backend import nccl, world
from deadpool.backend.gloo import GlooFactory
from deadpool.backend.nccl_communicators import NcclCommunicators
from deadpool.backend.present_members import present_members
from deadpool.backend.supervisor import Supervisor
from deadpool.errors import GroupError

_DEFAULT_TIMEOUT: timedelta = dist.distributed_c10d.default_pg_timeout


class BackendFactory:
    """While `detached` this process rehearses, and every backend it makes is fake or has no peers."""

    def __init__(self, gloo: GlooFactory, communicators: NcclCommunicators, supervisor: Supervisor) -> None:
        self._gloo, self._communicators, self._supervisor = gloo, communicators, supervisor
        self.detached = False

    # --- in place of torch's constructors, with their arguments ------------------------------------------------------

    def make_gloo(self, store: dist.Store, rank: int, size: int, timeout: timedelta = _DEFAULT_TIMEOUT) -> Any:
        if self.detached:
            return self._supervisor.run("making a fake group", lambda: self._gloo.make_single(timeout), connections=0)
        return self._supervisor.run(
            "making a group", lambda: self._gloo.connect(store, rank, size, timeout), connections=size - 1
        )

    def make_nccl(self, store: dist.Store, rank: int, size: int, options: Any) -> Any:
        if self.detached:
            return nccl.make_single(options)
        return self._communicators.make("making a group", store, rank, size, options)

    def cover_with_fake(self, group: world.JoinedGroup) -> None:
        """In a rehearsal, no collective of a new group may reach the real backend beneath."""
        if self.detached and not world.is_faked(group.process_group):
            world.put_fake(group.process_group, self._gloo.make_fake(group.rank, group.size, group.timeout))

    # --- at a rebuild ------------------------------------------------------------------------------------------------

    def remake(
        self, group: world.JoinedGroup, store: dist.Store, wait_s: float, carried: Mapping[int, int]
    ) -> dict[str, Any]:
        """New connected backends for the group, by transport."""
        members = present_members(group.global_ranks, carried)
        if members is None:
            return {transport: self._gloo.make_refusing() for transport in group.transports}
        return {transport: self._remake(transport, group, store, wait_s, members) for transport in group.transports}

    def _remake(
        self, transport: str, group: world.JoinedGroup, store: dist.Store, wait_s: float, members: list[int]
    ) -> Any:
        if transport == "nccl":
            if len(members) < group.size:
                raise GroupError(f"group {group.name} has ranks without a process, and NCCL was not tried with that")
            return self._communicators.remake(group, store)
        rank, size, timeout = members.index(group.global_ranks[group.rank]), len(members), group.timeout
        backend = self._supervisor.run(
            f"rebuilding group {group.name}",
            lambda: self._gloo.connect(store, rank, size, timeout),
            connections=size - 1,
            wait_s=wait_s,
        )
        backend._set_sequence_number_for_group()
        return backend
