"""Tries what this package relies on in torch and what no public interface promises, on groups without peers.

Versions of torch differ, and some differences fail late or not at all: a group that takes its size from another place
shards a model differently in a rehearsal than in the job. So the attributes that are used are looked up, and what they
are used for is done once: a rehearsing group has its rank and size, and a backend that is put into it is reached. Runs
in a process that ends afterwards (trainer/process/torch_check.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.pipelining
from torch._C import _distributed_c10d

from deadpool.backend import nccl_backends as nccl
from deadpool.backend import torch_versions, world
from deadpool.backend.gloo_backends import GlooFactory
from deadpool.backend.groups import Groups
from deadpool.backend.interception import Interception
from deadpool.backend.recorded_collectives import Key
from deadpool.errors import ConfigError, Unsuitable

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
            *("_set_group_desc", "get_group_store", "BackendType", "_start_coalescing", "_end_coalescing"),
        ),
    ),
    "torch.distributed.fsdp": (torch.distributed.fsdp, ("FSDPModule", "fully_shard")),
    "torch.distributed.pipelining": (torch.distributed.pipelining, ("PipelineStage", "Schedule1F1B")),
    "torch._C._distributed_c10d": (_distributed_c10d, ("FakeProcessGroup", "ProcessGroupGloo", "Work")),
    "ProcessGroupGloo": (getattr(_distributed_c10d, "ProcessGroupGloo", None), ("_Options", "create_device")),
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
    """Checks, inside rehearsing_groups(), that groups have the ranks asked for and that a fake backend is reached."""
    seen = (dist.get_rank(), dist.get_world_size())
    require(seen == (RANK, SIZE), f"the group of rank {RANK} of {SIZE} says (rank, size) {seen} in a rehearsal")
    half: Any = dist.new_group([1, RANK])
    seen = (half.rank(), half.size())
    require(seen == (1, 2), f"the group of rank 1 of 2 says (rank, size) {seen} in a rehearsal")
    reached = world.is_faked(dist.group.WORLD) and not _is_refused()
    require(reached, "a fake backend that is put over a real one is not reached")


def check_swap() -> None:
    """Checks, inside rehearsing_groups(), that backends can be swapped. A backend that refuses every collective is put
    into a group, then one that does not, then one with fewer ranks, as after a recovery with carried ranks. Each has to
    be reached, and the group keeps its rank and size."""
    gloo, group = GlooFactory("127.0.0.1"), world.joined_groups()[0]
    for number, (backend, refuses) in enumerate(
        (
            (gloo.make_refusing(RANK, SIZE), True),
            (gloo.make_fake(RANK, SIZE, group.timeout), False),
            (gloo.make_fake(0, SIZE // 2, group.timeout), False),
        ),
        start=1,
    ):
        world.swap(group, {"gloo": backend}, dist.HashStore(), number)
        require(_is_refused() == refuses, "a backend that is put into a group is not reached")
        seen = (dist.get_rank(), dist.get_world_size())
        require(seen == (RANK, SIZE), f"a group with another backend says of itself (rank, size) {seen}")


def check_interception() -> None:
    """Checks, inside rehearsing_groups(), that collectives are intercepted. What a rehearsal is given of the
    collectives of a live rank passes through here, and a method that has another name would be left out without a word.
    """
    tensor, parts = torch.ones(1), [torch.ones(1) for _ in range(SIZE)]
    calls: dict[str, Callable[[], Any]] = {
        "broadcast": lambda: dist.broadcast(tensor, src=0),
        "all_gather": lambda: dist.all_gather(parts, tensor),
    }
    seen: list[list[torch.Tensor]] = []

    def listen(key: Key, outputs: list[torch.Tensor], call: Callable[[], Any]) -> Any:
        seen.append(outputs)
        return call()

    interception = Interception()
    interception.begin(listen)
    try:
        for name, call in calls.items():
            seen.clear()
            call()
            expected = parts if name == "all_gather" else [tensor]
            found = [each for outputs in seen for each in outputs]
            is_whole = len(found) == len(expected) and all(a is b for a, b in zip(found, expected, strict=True))
            require(is_whole, f"{name} does not pass through a method of ProcessGroup that is known")
    finally:
        interception.end()


def check_nccl() -> None:
    """Inside rehearsing_groups(), where torch was built with NCCL. No GPU is needed: whatever class torch takes for a
    group over NCCL, and the device that it chooses, has to come by here, and a fake backend is made instead."""
    made: list[nccl.Recipe] = []

    def note(recipe: nccl.Recipe, rank: int, size: int) -> Any:
        made.append(recipe)
        return GlooFactory("127.0.0.1").make_fake(rank, size, recipe.options._timeout)

    if not dist.is_nccl_available():
        return
    require(torch_versions.ProcessGroupNCCL is not None, "torch._C._distributed_c10d has no ProcessGroupNCCL")
    with (
        _replaced(nccl.Recipe, "make_unconnected", note),
        _replaced(nccl, "prepare_environment", lambda: None),
        _replaced(torch.cuda, "device_count", lambda: 1),
    ):
        for name in torch_versions.NCCL_NAMES:
            _check_nccl_of(name, made)


def _check_nccl_of(name: str, made: list[nccl.Recipe]) -> None:
    """A group of one rank: if torch makes a class that is not known, and there is a GPU, it need not wait for peers."""
    made.clear()
    try:
        dist.new_group([RANK], backend=name)
    except ConfigError as error:
        raise Unsuitable(str(error)) from error
    except (RuntimeError, AssertionError):  # an unknown class has found no GPU, or torch expects one of its own classes
        pass
    kinds = [recipe.kind for recipe in made]
    known = len(kinds) == 1 and kinds[0] in torch_versions.nccl_classes()
    require(known, f"backend={name!r} is made by a class that is none of ProcessGroupNCCL and ProcessGroupNCCL2")
    is_bound = made[0].device is not None
    require(is_bound == (kinds[0] is torch_versions.ProcessGroupNCCL2), f"backend={name!r} is bound to another device")


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _is_refused() -> bool:
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError:
        return True
    return False
