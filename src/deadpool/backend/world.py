"""Reads and changes torch.distributed's module state: lists the groups, swaps the backends of one, forgets some.

The only file that touches `distributed_c10d._world`. Main thread only.

When groups are forgotten, torch's caches of device meshes and their groups are cleared. A plain recovery does not need
this: groups keep their names and their objects, so cached ones stay valid. It is needed when a step that made groups is
computed again, because a cache may hold a group of the first attempt.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from deadpool.backend import backend_release, torch_versions
from deadpool.backend.torch_versions import FakeProcessGroup

_c10d: Any = dist.distributed_c10d

_BACKEND_TYPE = torch_versions.BackendType

# If a group can be emptied (backend_release.py), a new backend takes the type of the old one. If not, torch would keep
# the old one, so each swap uses a type number of its own, above those that torch has names for. A type is one byte, so
# the numbers run out. The first is for the fake backend of a rehearsal, the last for that of a forgotten group.
_KNOWN_TYPES: dict[str, Any] = getattr(_BACKEND_TYPE, "__members__", {})
_TYPES = {name: _KNOWN_TYPES.get("CUSTOM") for name in torch_versions.NCCL_NAMES}


_TYPES |= {"gloo": _KNOWN_TYPES.get("GLOO"), "nccl": _KNOWN_TYPES.get("NCCL")}
_FAKE_TYPE = max(map(int, _KNOWN_TYPES.values()), default=0) + 1
_FORGOTTEN_TYPE = 255
SWAP_LIMIT = _FORGOTTEN_TYPE - 1 - _FAKE_TYPE

FAKE = "fake"
ABORTABLE = frozenset(_TYPES)
"""The backends that can be aborted and made anew."""

_RANKS_SHOWN = 16
_REGISTRIES = (
    *("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "pg_coalesce_state"),
    torch_versions.FLIGHT_RECORDER_HOOKS,
)


@dataclass(frozen=True, slots=True)
class JoinedGroup:
    """A process group that this rank is in."""

    name: str
    process_group: Any
    # For a group that was split off: its ranks, and the registered group it came from, which says what its backends
    # are.
    parent: Any = None
    split_ranks: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        return int(self.process_group.rank())

    @property
    def size(self) -> int:
        return int(self.process_group.size())

    @property
    def timeout(self) -> timedelta:
        timeout: timedelta = self.backend(next(iter(self.transports))).options._timeout
        return timeout

    @property
    def transports(self) -> dict[str, list[Any]]:
        """The name of each abortable backend -> the devices it serves, as the group was made: the current backend may
        be fake.

        Empty for a group that the script made with a backend that communicates with no peer, such as torch's "fake".
        """
        names = self._backend_by_device()
        found: dict[str, list[Any]] = {}
        for device in self.process_group._device_types:
            if names[device.type] in ABORTABLE:
                found.setdefault(names[device.type], []).append(device)
        return found

    @property
    def nccl(self) -> str | None:
        """The transport that is one of NCCL's, if there is any: a group has at most one."""
        return next((name for name in self.transports if name in torch_versions.NCCL_NAMES), None)

    @property
    def backend_names(self) -> set[str]:
        return set(self._backend_by_device().values())

    def _backend_by_device(self) -> dict[str, str]:
        """Parses the group's registration, such as "cpu:gloo,cuda:nccl"."""
        config = str(_c10d._world.pg_backend_config[self.parent or self.process_group])
        return dict(part.split(":") for part in config.split(","))

    def backend(self, transport: str) -> Any:
        """The current backend, which may be fake."""
        return self.process_group._get_backend(self.transports[transport][0])

    @property
    def global_ranks(self) -> list[int]:
        return dist.get_process_group_ranks(self.process_group) if self.parent is None else list(self.split_ranks)

    @property
    def ranks(self) -> str:
        """For messages, and to tell apart groups that have the same name by accident."""
        listed = ", ".join(map(str, self.global_ranks))
        short = self.size <= _RANKS_SHOWN
        return f"ranks {listed}" if short else f"{self.size} ranks, {zlib.crc32(listed.encode()):08x}"


_split_off: dict[Any, JoinedGroup] = {}
"""Groups made by `group.split_group(...)`, which torch's registry lacks; void once their parent is destroyed."""


def register_split(group: JoinedGroup) -> None:
    _split_off[group.process_group] = group


def joined_groups() -> list[JoinedGroup]:
    """In order of creation, which is the same on all ranks because making a group is collective."""
    known = _c10d._world.pg_names
    return [
        *(JoinedGroup(str(name), process_group) for process_group, name in known.items()),
        *(group for handle, group in _split_off.items() if handle not in known and group.parent in known),
    ]


def joined(process_group: Any) -> JoinedGroup:
    return JoinedGroup(str(process_group.group_name), process_group)


def made_count() -> int:
    """How many numbered groups were made so far, also those this rank is not in: torch names the next group by it."""
    return int(_c10d._world.group_count)


def set_made_count(count: int) -> None:
    _c10d._world.group_count = count


def is_faked(process_group: Any) -> bool:
    return isinstance(process_group._get_backend(process_group._device_types[0]), FakeProcessGroup)


def set_timeout_of_fakes(process_group: Any, timeout: timedelta) -> None:
    for device in process_group._device_types:
        process_group._get_backend(device).options._timeout = timeout


def put_fake(process_group: Any, backend: Any) -> None:
    """Puts a fake backend over the real one of a new group.

    The real one stays beneath it as the group's default backend, because the logger of DDP casts that to
    ProcessGroupGloo without a check.
    """
    placed = {device: (backend, _BACKEND_TYPE(_FAKE_TYPE)) for device in process_group._device_types}
    _register_backends(joined(process_group), placed)


def put_first(process_group: Any, transport: str, backend: Any, devices: Iterable[Any]) -> None:
    """Gives a backend to a new group that has none yet and that torch's registry does not know."""
    kind = _BACKEND_TYPE(_FAKE_TYPE) if transport == FAKE else _TYPES[transport]
    for device in devices:
        process_group._register_backend(device, kind, backend)


def swap(group: JoinedGroup, backends: dict[str, Any], store: dist.Store, swap_number: int) -> list[Any]:
    """Puts new backends, by transport, into a live group; all code that holds the group or its name goes on with it.

    Returns the backends that were replaced, for the caller to release. `swap_number` counts from 1 to SWAP_LIMIT; it
    and as many numbers after it as there are further backends are never used twice for one group.
    """
    process_group = group.process_group
    before = {device: process_group._get_backend(device) for device in process_group._device_types}
    placed = {device: (backend, _BACKEND_TYPE.CUSTOM) for device, backend in before.items()}  # the script's own stay
    can_empty = backend_release.is_possible()
    for index, (transport, devices) in enumerate(group.transports.items()):
        kind = _TYPES[transport] if can_empty else _BACKEND_TYPE(_FAKE_TYPE + swap_number + index)
        placed.update(dict.fromkeys(devices, (backends[transport], kind)))
    _set_options(group, backends.values(), group.global_ranks)
    with _recorded_again(group):
        if can_empty:
            backend_release.empty(process_group, store)
        _register_backends(group, placed)
    if can_empty and set(group.transports) == {"gloo"}:
        _keep_size(group, backends["gloo"].size())
    # Groups that are made later meet in the store of the default group: the old store may have died with its node.
    if group.parent is None:
        backend_name, _ = _c10d._world.pg_map[process_group]
        _c10d._world.pg_map[process_group] = (backend_name, store)
    return [old for device, old in before.items() if placed[device][0] is not old]


def _keep_size(group: JoinedGroup, connected: int) -> None:
    """A group keeps its size while some of its ranks have no process (layout.py). Where a group would take its
    size from its default backend, it has none meanwhile, and then its size is the one that it was made with."""
    if torch_versions.groups_ask_backends() and group.parent is None:  # a group that was split off never has one
        is_whole = connected == len(group.global_ranks)
        group.process_group._set_default_backend(_TYPES["gloo"] if is_whole else _BACKEND_TYPE.UNDEFINED)


@contextlib.contextmanager
def _recorded_again(group: JoinedGroup) -> Iterator[None]:
    """The hook that records the collectives of a group is told by the backend when one has ended: so it is taken off
    the old backend and put on the new one."""
    hooks = getattr(_c10d._world, torch_versions.FLIGHT_RECORDER_HOOKS, {})
    hook, ranks = hooks.pop(group.process_group, None), group.global_ranks
    if hook is not None:
        hook.remove()
    yield
    if hook is not None:
        recorder: Any = _distributed_c10d.FlightRecorderHook  # type: ignore[attr-defined]
        hooks[group.process_group] = recorder.attach(group.process_group, ranks)


def fill_in_ranks(group: JoinedGroup) -> None:
    """Sets the ranks of a default group, which torch leaves out. Only the first backend of a process works without
    them: splitting a group off any other one would crash."""
    for backend in (group.backend(transport) for transport in group.transports):
        if not backend.options.global_ranks_in_group:
            backend.options.global_ranks_in_group = list(group.split_ranks or range(group.size))


def _set_options(group: JoinedGroup, backends: Iterable[Any], ranks: list[int]) -> None:
    for backend in backends:
        backend.options.global_ranks_in_group = ranks
        backend.options.group_name = group.name


def _register_backends(group: JoinedGroup, placed: dict[Any, tuple[Any, Any]]) -> None:
    """`placed` gives, by device, a backend and the type under which it is registered."""
    process_group, description = group.process_group, group.process_group.group_desc
    for device, (backend, kind) in placed.items():
        process_group._register_backend(device, kind, backend)
    process_group._set_group_name(group.name)  # name and description are kept in the backend
    process_group._set_group_desc(description)


def end_batches() -> bool:
    """Forgets batches that an exception cut off half-made. Returns whether there were any."""
    cut_off = bool(_c10d._world.pg_coalesce_state)
    _c10d._world.pg_coalesce_state.clear()
    return cut_off


def forget(groups: list[JoinedGroup], make_refusing: Callable[[], Any]) -> None:
    """Removes the groups as if they had never been made: their names are free, and a use of one raises at once."""
    for each in groups:
        refusing = make_refusing()
        devices = each.process_group._device_types
        _register_backends(each, {device: (refusing, _BACKEND_TYPE(_FORGOTTEN_TYPE)) for device in devices})
        _unregister(each)
    if groups:
        forget_groups({each.name for each in groups})


def _unregister(group: JoinedGroup) -> None:
    world = _c10d._world
    for registry in _REGISTRIES:
        getattr(world, registry, {}).pop(group.process_group, None)
    _split_off.pop(group.process_group, None)
    for tagged in world.tags_to_pg.values():
        if group.process_group in tagged:
            tagged.remove(group.process_group)
    if group.parent is None:
        _c10d._unregister_process_group(group.name)


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
