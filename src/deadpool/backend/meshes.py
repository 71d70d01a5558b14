"""Clears torch's caches of device meshes and their groups when groups are forgotten. Used by world.py only.

A plain recovery does not need this: groups keep their names and their objects, so cached ones stay valid. It is needed
when a step that made groups is computed again, because a cache may hold a group of the first attempt. Main thread only.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch


def forget_groups(names: set[str]) -> None:
    """Removes these groups from all meshes: a flattened mesh caches its result and would not make its group again."""
    for mesh in _meshes():
        _forget_flattened(getattr(mesh, "_flatten_mapping", {}), names)
        registry = getattr(mesh, "_pg_registry", {})
        for name in names & set(registry):
            del registry[name]
    for flattened in list(getattr(_resources(), "root_to_flatten_mapping", {}).values()):  # until torch 2.10
        _forget_flattened(flattened, names)
    _clear_caches_everywhere()


def _forget_flattened(flattened: dict[str, Any], names: set[str]) -> None:
    for key, mesh in list(flattened.items()):
        if names & set(getattr(mesh, "_dim_group_names", ())):
            del flattened[key]


def _meshes() -> Iterable[Any]:
    """torch keeps no list of meshes, so all objects are searched. This runs only when groups are forgotten: rarely."""
    device_mesh = sys.modules.get("torch.distributed.device_mesh")
    kind = getattr(device_mesh, "DeviceMesh", None)
    return [each for each in gc.get_objects() if type(each) is kind] if kind is not None else []


def _resources() -> Any:
    return getattr(sys.modules.get("torch.distributed.device_mesh"), "_mesh_resources", None)


def _clear_caches_everywhere() -> None:
    """Some caches are thread-local, and with a GPU backward runs in a thread of autograd."""
    _clear_caches()
    if torch.cuda.is_initialized():
        _in_backward(_clear_caches)


def _in_backward(work: Callable[[], None]) -> None:
    with torch.enable_grad():
        result = torch.zeros((), device="cuda", requires_grad=True) * 1
    result.register_hook(lambda _: work())
    result.backward()  # type: ignore[no-untyped-call]


def _clear_caches() -> None:
    _call(sys.modules.get("torch.distributed.tensor._redistribute"), "clear_redistribute_planner_cache")
    topology = getattr(sys.modules.get("torch.distributed.tensor._collective_utils"), "MeshTopoInfo", None)
    _call(getattr(topology, "build_from_mesh", None), "cache_clear")
    tensor = sys.modules.get("torch.distributed.tensor._api")
    if tensor is None:
        return
    propagator = tensor.DTensor._op_dispatcher.sharding_propagator
    _call(propagator.propagate_op_sharding, "cache_clear")
    if hasattr(propagator.propagate_op_sharding, "cache"):
        _call(propagator.propagate_op_sharding.cache, "cache_clear")
    _call(torch._C, "_clear_DTensor_sharding_propagator_cache")


def _call(owner: Any, method: str) -> None:
    """Calls the method if this torch has it: the caches differ between versions of torch."""
    found: Callable[[], object] | None = getattr(owner, method, None)
    if found is not None:
        found()
