"""Tries what this package relies on in torch and what no public interface promises, on groups without peers.

Versions of torch differ, and some differences fail late or not at all: a group that takes its size from another place
shards a model differently in a rehearsal than in the job. So the attributes that are used are looked up, and what they
are used for is done once: a rehearsing group has its rank and size, and a backend that is put into it is reached. Runs
in a process that ends afterwards (trainer/torch_check.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from deadpool.backend import torch_versions, world
from deadpool.backend.gloo import GlooFactory
from deadpool.backend.groups import Groups
from deadpool.errors import Unsuitable

RANK, SIZE = 2, 4

_c10d: Any = dist.distributed_c10d
_RELIED_ON: dict[str, tuple[Any, tuple[str, ...]]] = {
    "torch.distributed.distributed_c10d": (
        _c10d,
        (
            *("_world", "_new_process_group_helper", "_unregister_process_group", "_update_default_pg"),
            *("_get_process_group_name", "default_pg_timeout"),
        ),
    ),
    "distributed_c10d._world": (
        getattr(_c10d, "_world", None),
        (
            *("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg"),
            *("pg_coalesce_state", "group_count"),
        ),
    ),
    "ProcessGroup": (
        dist.ProcessGroup,
        (
            *("_register_backend", "_get_backend", "_set_default_backend", "_device_types", "_set_group_name"),
            *("_set_group_desc", "get_group_store", "BackendType"),
        ),
    ),
    "ProcessGroupGloo": (_distributed_c10d.ProcessGroupGloo, ("_Options", "create_device")),
    "torch._C._distributed_c10d": (_distributed_c10d, ("FakeProcessGroup",)),
    "FakeProcessGroup": (torch_versions.FakeProcessGroup, ("_create_internal", "Options")),
}


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Unsuitable(otherwise)


def check_names() -> None:
    for owner, (found, names) in _RELIED_ON.items():
        for name in names:
            require(hasattr(found, name), f"{owner} has no {name}")


@contextlib.contextmanager
def rehearsing_groups() -> Iterator[Groups]:
    """The default group of a process that rehearses one rank of several."""
    groups = Groups(timeout_s=5.0)
    groups.install()
    try:
        groups.init(backend="gloo", store=dist.HashStore(), rank=RANK, world_size=SIZE, detached=True)
        yield groups
    finally:
        groups.uninstall()


def check_rehearsal() -> None:
    """Inside rehearsing_groups()."""
    seen = (dist.get_rank(), dist.get_world_size())
    require(seen == (RANK, SIZE), f"the group of rank {RANK} of {SIZE} says (rank, size) {seen} in a rehearsal")
    half: Any = dist.new_group([1, RANK])
    seen = (half.rank(), half.size())
    require(seen == (1, 2), f"the group of rank 1 of 2 says (rank, size) {seen} in a rehearsal")
    reached = world.is_faked(dist.group.WORLD) and not _is_refused()
    require(reached, "a fake backend that is put over a real one is not reached")


def check_swap() -> None:
    """Inside rehearsing_groups(). A backend that refuses every collective is put into a group, then one that does not,
    and each has to be reached."""
    gloo, group = GlooFactory("127.0.0.1"), world.joined_groups()[0]
    for number, (backend, refuses) in enumerate(
        ((gloo.make_refusing(RANK, SIZE), True), (gloo.make_fake(RANK, SIZE, group.timeout), False)), start=1
    ):
        world.swap(group, {"gloo": backend}, dist.HashStore(), number)
        require(_is_refused() == refuses, "a backend that is put into a group is not reached")
    seen = (dist.get_rank(), dist.get_world_size())
    require(seen == (RANK, SIZE), f"a group with another backend says of itself (rank, size) {seen}")


def _is_refused() -> bool:
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError:
        return True
    return False
