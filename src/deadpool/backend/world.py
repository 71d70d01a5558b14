"""Everything we know about torch.distributed's module state: which groups exist, how to swap one, how to forget some.

The only file that touches `distributed_c10d._world`. Main thread only.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup

from deadpool.backend import backend_release, meshes

_c10d: Any = dist.distributed_c10d

_BACKEND_TYPE: Any = dist.ProcessGroup.BackendType

# Where a group can be emptied (refill.py), a new backend takes the type of the old one. Where it cannot, torch would
# keep the old one: then each swap takes a number of its own, above those that torch has names for. A type is one byte,
# so these run out. The first is for the fake backend of a rehearsal, the last for that of a forgotten group.
_TYPES = {"gloo": _BACKEND_TYPE.GLOO, "nccl": _BACKEND_TYPE.NCCL}
_FAKE_TYPE = max(int(each) for each in _BACKEND_TYPE.__members__.values()) + 1
_FORGOTTEN_TYPE = 255
SWAP_LIMIT = _FORGOTTEN_TYPE - 1 - _FAKE_TYPE

FAKE = "fake"
OURS = frozenset(_TYPES)
"""Backends that can be aborted and made anew."""

_RANKS_SHOWN = 16
_REGISTRIES = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "pg_coalesce_state")


@dataclass(frozen=True, slots=True)
class Member:
    """A process group that this rank belongs to."""

    name: str
    group: Any
    # Of a group that was split off: the registered one it came from, which says what its backends are, and its ranks.
    parent: Any = None
    split_ranks: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        return int(self.group.rank())

    @property
    def size(self) -> int:
        return int(self.group.size())

    @property
    def timeout(self) -> timedelta:
        return self.backend(next(iter(self.transports))).options._timeout

    @property
    def transports(self) -> dict[str, list[Any]]:
        """Name of each backend of ours -> the devices it serves, as the group was made: what is there now may be fake.

        Empty for a group of the script's own that talks to nobody, such as one of torch's "fake" ones.
        """
        names = self._names_by_device()
        found: dict[str, list[Any]] = {}
        for device in self.group._device_types:
            if names[device.type] in OURS:
                found.setdefault(names[device.type], []).append(device)
        return found

    @property
    def backend_names(self) -> set[str]:
        return set(self._names_by_device().values())

    def _names_by_device(self) -> dict[str, str]:
        """As the group's registration has them: "cpu:gloo,cuda:nccl"."""
        config = str(_c10d._world.pg_backend_config[self.parent or self.group])
        return dict(part.split(":") for part in config.split(","))

    def backend(self, transport: str) -> Any:
        """What is there now."""
        return self.group._get_backend(self.transports[transport][0])

    @property
    def global_ranks(self) -> list[int]:
        return dist.get_process_group_ranks(self.group) if self.parent is None else list(self.split_ranks)

    @property
    def ranks(self) -> str:
        """For people, and to tell groups apart that bear the same name by accident."""
        listed = ", ".join(map(str, self.global_ranks))
        short = self.size <= _RANKS_SHOWN
        return f"ranks {listed}" if short else f"{self.size} ranks, {zlib.crc32(listed.encode()):08x}"


_split_off: dict[Any, Member] = {}
"""Groups that torch's registry does not know, made by `group.split_group(...)`; void once their parent is destroyed."""


def note_split(member: Member) -> None:
    _split_off[member.group] = member


def members() -> list[Member]:
    """In order of creation, which is the same on all ranks because making a group is collective."""
    known = _c10d._world.pg_names
    return [
        *(Member(str(name), group) for group, name in known.items()),
        *(member for group, member in _split_off.items() if group not in known and member.parent in known),
    ]


def member(group: Any) -> Member:
    return Member(str(group.group_name), group)


def made_count() -> int:
    """How many groups were made under a number so far, also those this rank is no member of: names the next one."""
    return int(_c10d._world.group_count)


def set_made_count(count: int) -> None:
    _c10d._world.group_count = count


def is_faked(group: Any) -> bool:
    return isinstance(group._get_backend(group._device_types[0]), FakeProcessGroup)


def fake(group: Any, backend: FakeProcessGroup) -> None:
    """Puts a fake backend over the real one of a new group.

    The real one stays beneath as the group's default backend, because the logger of DDP takes it for a
    ProcessGroupGloo without asking.
    """
    _put(member(group), {device: (backend, _BACKEND_TYPE(_FAKE_TYPE)) for device in group._device_types})


def furnish(group: Any, transport: str, backend: Any, devices: Iterable[Any]) -> None:
    """A new group that has no backend yet, and that torch's registry does not know."""
    kind = _BACKEND_TYPE(_FAKE_TYPE) if transport == FAKE else _TYPES[transport]
    for device in devices:
        group._register_backend(device, kind, backend)


def swap(member: Member, backends: dict[str, Any], store: dist.Store, swap_number: int) -> list[Any]:
    """Puts new backends, by transport, into a live group; everybody who holds the group or its name goes on with it.

    Returns what was there before, for the caller to let go of. `swap_number` counts from 1 to SWAP_LIMIT; it and as
    many after it as there are further backends are never used twice for one group.
    """
    group = member.group
    before = {device: group._get_backend(device) for device in group._device_types}
    placed = {device: (backend, _BACKEND_TYPE.CUSTOM) for device, backend in before.items()}  # what is not ours stays
    can_empty = backend_release.is_possible()
    for index, (transport, devices) in enumerate(member.transports.items()):
        kind = _TYPES[transport] if can_empty else _BACKEND_TYPE(_FAKE_TYPE + swap_number + index)
        placed.update(dict.fromkeys(devices, (backends[transport], kind)))
    _describe(member, backends.values(), member.global_ranks)
    if can_empty:
        backend_release.empty(group, store)
    _put(member, placed)
    # Groups made from now on meet in the store of the default group: the old one may have died with its node.
    if member.parent is None:
        backend_name, _ = _c10d._world.pg_map[group]
        _c10d._world.pg_map[group] = (backend_name, store)
    return [old for device, old in before.items() if placed[device][0] is not old]


def fill_in_ranks(member: Member) -> None:
    """torch leaves the ranks of a default group out. Only the first backend of a process can do without: a group that
    is split off any other one would crash."""
    for backend in (member.backend(transport) for transport in member.transports):
        if not backend.options.global_ranks_in_group:
            backend.options.global_ranks_in_group = list(member.split_ranks or range(member.size))


def _describe(member: Member, backends: Iterable[Any], ranks: list[int]) -> None:
    for backend in backends:
        backend.options.global_ranks_in_group = ranks
        backend.options.group_name = member.name


def _put(member: Member, placed: dict[Any, tuple[Any, Any]]) -> None:
    """By device: a backend and the type under which it is registered."""
    group, description = member.group, member.group.group_desc
    for device, (backend, kind) in placed.items():
        group._register_backend(device, kind, backend)
    group._set_group_name(member.name)  # name and description live in the backend
    group._set_group_desc(description)


def end_batches() -> bool:
    """Forgets batches that an exception cut off half-made. Whether there were any."""
    cut_off = bool(_c10d._world.pg_coalesce_state)
    _c10d._world.pg_coalesce_state.clear()
    return cut_off


def forget(members: list[Member], make_refusing: Callable[[], FakeProcessGroup]) -> None:
    """As if these groups had never been made: their names are free again. Who still uses one gets an error at once."""
    for each in members:
        refusing = make_refusing()
        _put(each, {device: (refusing, _BACKEND_TYPE(_FORGOTTEN_TYPE)) for device in each.group._device_types})
        _drop(each)
    if members:
        meshes.forget_groups({each.name for each in members})


def _drop(member: Member) -> None:
    world = _c10d._world
    for registry in _REGISTRIES:
        getattr(world, registry).pop(member.group, None)
    _split_off.pop(member.group, None)
    for tagged in world.tags_to_pg.values():
        if member.group in tagged:
            tagged.remove(member.group)
    if member.parent is None:
        _c10d._unregister_process_group(member.name)
