"""Everything we know about torch.distributed's module state: which groups exist, how to swap one, how to forget some.

The only file that touches `distributed_c10d._world`. Main thread only.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup

from deadpool.backend import meshes

_c10d: Any = dist.distributed_c10d

_BACKEND_TYPE: Any = dist.ProcessGroup.BackendType

# BackendType is one byte, and torch keeps the old backend when a type is registered twice in one group: so each swap
# takes a number of its own, above those that torch has names for. The first is for the fake backend of a rehearsal, the
# last for that of a forgotten group.
_FAKE_TYPE = max(int(each) for each in _BACKEND_TYPE.__members__.values()) + 1
_FORGOTTEN_TYPE = 255
SWAP_LIMIT = _FORGOTTEN_TYPE - 1 - _FAKE_TYPE

_RANKS_SHOWN = 16
_REGISTRIES = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "pg_coalesce_state")


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

    @property
    def transports(self) -> dict[str, list[Any]]:
        """Name of each backend -> the devices it serves, as the group was made: what is there now may be fake."""
        config = str(_c10d._world.pg_backend_config[self.group])
        names = dict(part.split(":") for part in config.split(","))
        found: dict[str, list[Any]] = {}
        for device in self.group._device_types:
            found.setdefault(names[device.type], []).append(device)
        return found

    def backend(self, transport: str) -> Any:
        """What is there now."""
        return self.group._get_backend(self.transports[transport][0])

    @property
    def ranks(self) -> str:
        """For people, and to tell groups apart that bear the same name by accident."""
        listed = ", ".join(map(str, dist.get_process_group_ranks(self.group)))
        short = self.size <= _RANKS_SHOWN
        return f"ranks {listed}" if short else f"{self.size} ranks, {zlib.crc32(listed.encode()):08x}"


def members() -> list[Member]:
    """In order of creation, which is the same on all ranks because making a group is collective."""
    return [Member(str(name), group) for group, name in _c10d._world.pg_names.items()]


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
    _put(member(group), backend, _FAKE_TYPE, group._device_types)


def swap(member: Member, backends: dict[str, Any], store: dist.Store, swap_number: int) -> None:
    """Puts new backends, by transport, into a live group; everybody who holds the group or its name goes on with it.

    `swap_number` counts from 1 to SWAP_LIMIT. It and as many after it as there are further backends are never used
    twice for one group.
    """
    for index, (transport, devices) in enumerate(member.transports.items()):
        _put(member, backends[transport], _FAKE_TYPE + swap_number + index, devices)
    # Groups made from now on meet in the store of the default group: the old one may have died with its node.
    backend_name, _ = _c10d._world.pg_map[member.group]
    _c10d._world.pg_map[member.group] = (backend_name, store)


def _put(member: Member, backend: Any, type_number: int, devices: list[Any]) -> None:
    group, description = member.group, member.group.group_desc
    old_options = group._get_backend(devices[0]).options
    backend.options.global_ranks_in_group = old_options.global_ranks_in_group
    backend.options.group_name = member.name
    for device in devices:
        group._register_backend(device, _BACKEND_TYPE(type_number), backend)
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
        _put(each, make_refusing(), _FORGOTTEN_TYPE, each.group._device_types)
        _drop(each)
    if members:
        meshes.forget_groups({each.name for each in members})


def _drop(member: Member) -> None:
    world = _c10d._world
    for registry in _REGISTRIES:
        getattr(world, registry).pop(member.group, None)
    for tagged in world.tags_to_pg.values():
        if member.group in tagged:
            tagged.remove(member.group)
    _c10d._unregister_process_group(member.name)


def forget_all() -> None:
    """As if torch.distributed had never been used: the script can be run again and names its groups the same."""
    if dist.is_initialized():
        # A backend that was aborted may complain; what counts is cleared below in any case.
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
    _clear_registries()
    meshes.forget_all()


def _clear_registries() -> None:
    world = _c10d._world
    _c10d._update_default_pg(None)
    for registry in (*_REGISTRIES, "tags_to_pg"):
        getattr(world, registry).clear()
    _c10d._unregister_all_process_groups()
    world.group_count = 0
