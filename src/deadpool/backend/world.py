"""Everything we know about torch.distributed's module state: which groups exist, how to swap one, how to forget all.

The only file that touches `distributed_c10d._world` and the caches that may hold a dead mesh. Main thread only.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup

_c10d: Any = dist.distributed_c10d

_BACKEND_TYPE: Any = dist.ProcessGroup.BackendType

# BackendType is one byte, and torch keeps the old backend when a type is registered twice in one group: so each swap
# takes a number of its own, above those that torch has names for. The first is for the fake backend of a rehearsal.
_FAKE_TYPE = max(int(each) for each in _BACKEND_TYPE.__members__.values()) + 1
SWAP_LIMIT = 255 - _FAKE_TYPE


@dataclass(frozen=True, slots=True)
class Member:
    """A process group that this rank belongs to."""

    name: str
    group: Any

    @property
    def rank(self) -> int:
        return int(self.group.rank())

    @property
    def size(self) -> int:
        return int(self.group.size())

    @property
    def timeout(self) -> timedelta:
        return self.group._get_backend(self.group._device_types[0]).options._timeout


def members() -> list[Member]:
    """In order of creation, which is the same on all ranks because making a group is collective."""
    return [Member(str(name), group) for group, name in _c10d._world.pg_names.items()]


def member(group: Any) -> Member:
    return Member(str(group.group_name), group)


def is_faked(group: Any) -> bool:
    return isinstance(group._get_backend(group._device_types[0]), FakeProcessGroup)


def fake(group: Any, backend: FakeProcessGroup) -> None:
    """Puts a fake backend over the real one of a new group.

    The real one stays beneath as the group's default backend, because the logger of DDP takes it for a
    ProcessGroupGloo without asking.
    """
    _put(member(group), backend, _FAKE_TYPE)


def swap(member: Member, backend: Any, store: dist.Store, swap_number: int) -> None:
    """Puts a new backend into a live group; everybody who holds the group or its name goes on with it.

    `swap_number` counts from 1 to SWAP_LIMIT and is never used twice for one group.
    """
    _put(member, backend, _FAKE_TYPE + swap_number)
    # Groups made from now on meet in the store of the default group: the old one may have died with its node.
    backend_name, _ = _c10d._world.pg_map[member.group]
    _c10d._world.pg_map[member.group] = (backend_name, store)


def _put(member: Member, backend: Any, type_number: int) -> None:
    group, description = member.group, member.group.group_desc
    old_options = group._get_backend(group._device_types[0]).options
    backend.options.global_ranks_in_group = old_options.global_ranks_in_group
    backend.options.group_name = member.name
    for device in group._device_types:
        group._register_backend(device, _BACKEND_TYPE(type_number), backend)
    group._set_group_name(member.name)  # name and description live in the backend
    group._set_group_desc(description)


def forget() -> None:
    """As if torch.distributed had never been used: the script can be run again and names its groups the same."""
    if dist.is_initialized():
        # A backend that was aborted may complain; what counts is cleared below in any case.
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
    _clear_registries()
    _clear_mesh_caches()


def _clear_registries() -> None:
    world = _c10d._world
    _c10d._update_default_pg(None)
    for registry in ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg"):
        getattr(world, registry).clear()
    world.pg_coalesce_state.clear()
    _c10d._unregister_all_process_groups()
    world.group_count = 0


def _clear_mesh_caches() -> None:
    """Meshes compare equal across runs although their groups differ, so a cache would hand back a dead one."""
    device_mesh = sys.modules.get("torch.distributed.device_mesh")
    resources = getattr(device_mesh, "_mesh_resources", None)
    for registry in ("mesh_stack", "child_to_root_mapping", "root_to_flatten_mapping", "flatten_name_to_root_dims"):
        _call(getattr(resources, registry, None), "clear")
    _call(sys.modules.get("torch.distributed.tensor._redistribute"), "clear_redistribute_planner_cache")
    topology = getattr(sys.modules.get("torch.distributed.tensor._collective_utils"), "MeshTopoInfo", None)
    _call(getattr(topology, "build_from_mesh", None), "cache_clear")
    random = sys.modules.get("torch.distributed.tensor._random")
    if random is not None:
        random._rng_tracker = None  # type: ignore[attr-defined]
    _clear_sharding_caches()


def _clear_sharding_caches() -> None:
    tensor = sys.modules.get("torch.distributed.tensor._api")
    if tensor is None:
        return
    propagator = tensor.DTensor._op_dispatcher.sharding_propagator
    _call(propagator.propagate_op_sharding, "cache_clear")
    if hasattr(propagator.propagate_op_sharding, "cache"):
        _call(propagator.propagate_op_sharding.cache, "cache_clear")
    _call(torch._C, "_clear_DTensor_sharding_propagator_cache")


def _call(owner: Any, method: str) -> None:
    """Calls it where this torch has it: these caches come and go between versions."""
    found: Callable[[], object] | None = getattr(owner, method, None)
    if found is not None:
        found()
