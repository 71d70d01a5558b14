"""Takes the backends out of a live process group, so that new ones can be put in their places.

A ProcessGroup of torch keeps the first backend of each type for as long as it lives: it ignores a second one that is
registered under the same type. `ProcessGroup::release_resources()` releases all backends and the group's store. torch's
library exports that function but does not bind it to Python, so it is called through ctypes.

Every assumption about the memory layout of a group is tried on a group made for that purpose, once per process. If one
does not hold, `is_possible()` is False, and the caller gives each new backend a type number of its own (world.py). Main
thread only.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from deadpool.backend import torch_versions
from deadpool.backend.torch_versions import FakeProcessGroup

_RELEASE = "_ZN4c10d12ProcessGroup17release_resourcesEv"  # c10d::ProcessGroup::release_resources()
_VTABLE = "_ZTVN4c10d12ProcessGroupE"
_VTABLE_HEADER_BYTES = 16  # an object's vtable pointer points behind it
_WORD_BYTES = 8
_WORDS_SEARCHED = 8

_ProcessGroup: Any = dist.ProcessGroup


@functools.cache
def is_possible() -> bool:
    """Whether groups can be emptied in this process."""
    if not torch_versions.is_tested():  # a wrong guess could crash the process
        return False
    try:
        return _works()
    except (OSError, AttributeError, ValueError):  # no such library, function or method in this torch
        return False


def empty(group: Any, store: dist.Store) -> None:
    """Leaves the group without a backend, and with `store` as its store."""
    library = _library()
    address = _address_of_group(library, group)
    getattr(library, _RELEASE)(ctypes.c_void_p(address))
    # The group has no store now. It takes the store pointer of a temporary group, by a swap of the two words: so no
    # reference count has to be changed by hand.
    donor = _ProcessGroup(store, 0, 1)
    _swap_words(address + _store_offset(), _address_of_group(library, donor) + _store_offset())


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


def _works() -> bool:
    """Empties and refills a group twice, and checks that it has the new backend and the new store."""
    device, kind = torch.device("cpu"), _ProcessGroup.BackendType.GLOO
    group, store = _ProcessGroup(dist.HashStore(), 0, 1), dist.HashStore()
    for backend in (_fake(), _fake()):
        empty(group, store)
        group._register_backend(device, kind, backend)
        if group._get_backend(device) is not backend or group.get_group_store() is not store:
            return False
    return True


def _fake() -> Any:
    return FakeProcessGroup._create_internal(rank=0, world_size=1, options=FakeProcessGroup.Options())


@functools.cache
def _store_offset() -> int:
    """The offset of the pointer to the store within a group."""
    library, store = _library(), dist.HashStore()
    group = _ProcessGroup(store, 0, 1)
    address, wanted = _address_of_group(library, group), _address_of(store)
    offsets = range(0, _WORDS_SEARCHED * _WORD_BYTES, _WORD_BYTES)
    found = [offset for offset in offsets if _word(address + offset).value == wanted]
    if len(found) != 1:
        raise ValueError(f"a group has {len(found)} pointers to its store")
    return found[0]


def _address_of_group(library: ctypes.CDLL, group: Any) -> int:
    """ValueError for anything but a plain ProcessGroup: subclasses in Python are laid out differently."""
    address = _address_of(group)
    vtable = ctypes.addressof(ctypes.c_void_p.in_dll(library, _VTABLE)) + _VTABLE_HEADER_BYTES
    if type(group) is not _ProcessGroup or _word(address).value != vtable:
        raise ValueError(f"{group!r} does not have the memory layout of a torch process group")
    return address


def _address_of(bound: object) -> int:
    """pybind11 keeps the address of the C++ object right behind the header of the Python object."""
    address: int = _word(id(bound) + object.__basicsize__).value
    return address


def _word(address: int) -> ctypes.c_uint64:
    return ctypes.c_uint64.from_address(address)


def _swap_words(one: int, other: int) -> None:
    first, second = _word(one), _word(other)
    first.value, second.value = second.value, first.value
