"""Replaces the constructors of gloo and NCCL backends inside torch.distributed, so that every plain call uses ours.

init_process_group, new_group, DeviceMesh and all that is built on them go through
`distributed_c10d._new_process_group_helper`, which calls `ProcessGroupGloo(store, rank, size, timeout=...)` or
`ProcessGroupNCCL(store, rank, size, options)` (since torch 2.15 also `ProcessGroupNCCL2`, with a device) and checks the
type of the result. These names are replaced there; user code and backend names stay the same as in plain torch.

Further replacements: `ProcessGroup.split_group` makes its backends in C++, so the method itself is replaced.
`ProcessGroup.monitored_barrier` is the one operation of gloo that fake backends refuse; a rehearsal skips it. Timeouts
that a script sets in a rehearsal are kept in the fake backends, for the real ones that are made later. Every
destruction of a group is reported before one of its connections can close: `_unregister_process_group` ends the
destruction of one group, `_update_default_pg(None)` begins that of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d

from deadpool.backend import torch_versions, world
from deadpool.errors import GroupError

MakeBackend = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCall:
    """The arguments of `parent.split_group(...)`; `ranks` are those of the parent, in the order of the new group. None:
    the parent's value applies."""

    parent: Any
    ranks: list[int]
    timeout: timedelta | None
    name: str | None
    description: str | None
    devices: list[Any] | None
    original: Callable[[], Any]  # torch's own split_group with these arguments, which connects the new group


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHooks:
    """What the replacements call."""

    constructors: Mapping[str, MakeBackend]  # by the name of torch's class: each makes a backend
    on_made: Callable[[Any], None]  # gets each new group that this rank is in, before it is used
    split: Callable[[SplitCall], Any]  # gives the result of split_group()
    on_destroy: Callable[[str | None], None]  # gets the name of a group that is destroyed, or None for all groups
    choose_device: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]  # wraps torch's choice of NCCL2's device
    made_on: Callable[[Any], AbstractContextManager[None]]  # around the making of a group, with its device_id or None


_c10d: Any = dist.distributed_c10d
_ProcessGroup: Any = dist.ProcessGroup


class ConstructorPatch:
    """Installs the replacements, and puts torch's own functions back."""

    def __init__(self, hooks: GroupHooks) -> None:
        self._hooks = hooks
        self._constructors = hooks.constructors
        self._original_functions: dict[str, Any] = {}
        self._original_methods: dict[str, Any] = {}
        self.is_installed = False

    def install(self) -> None:
        for name, make in self._constructors.items():
            original = getattr(_distributed_c10d, name)
            if getattr(_c10d, name) is not original:
                raise GroupError(f"torch.distributed's {name} is already replaced in this process")
            setattr(_c10d, name, _replacement_class(original, make))
        self._replace_function("_new_process_group_helper", self._new_group)
        self._replace_function("_unregister_process_group", self._unregister)
        self._replace_function("_update_default_pg", self._update_default)
        if hasattr(_c10d, "_nccl2_device"):
            self._replace_function("_nccl2_device", self._hooks.choose_device(_c10d._nccl2_device))
        in_order = list if torch_versions.splits_keep_order() else sorted
        self._replace_method(
            "split_group", lambda original: _replaced_split_group(original, self._hooks.split, in_order)
        )
        self._replace_method("monitored_barrier", _replaced_monitored_barrier)
        self._replace_method("set_timeout", _replaced_set_timeout)
        if not hasattr(_c10d, "set_timeout"):  # public since torch 2.14, and it calls the method
            self._replace_function("_set_pg_timeout", _replaced_set_pg_timeout(_c10d._set_pg_timeout))
        self.is_installed = True

    def uninstall(self) -> None:
        if not self.is_installed:
            return
        self.is_installed = False
        for name in self._constructors:
            setattr(_c10d, name, getattr(_distributed_c10d, name))
        for name, original in self._original_methods.items():
            setattr(_ProcessGroup, name, original)
        for name, original in self._original_functions.items():
            setattr(_c10d, name, original)

    def _replace_function(self, name: str, replacement: Callable[..., Any]) -> None:
        self._original_functions[name] = getattr(_c10d, name)
        setattr(_c10d, name, replacement)

    def _replace_method(self, name: str, wrap: Callable[[Any], Any]) -> None:
        if (original := getattr(_ProcessGroup, name, None)) is not None:
            self._original_methods[name] = original
            setattr(_ProcessGroup, name, wrap(original))

    def _new_group(self, *arguments: Any, **keywords: Any) -> Any:
        """With a device_id torch would connect the new group at once, before a fake backend can be put over it or an
        abort could end that. So the device is taken out, and only NCCL2 is told it."""
        with self._hooks.made_on(keywords.pop("device_id", None)):
            group, store = self._original_functions["_new_process_group_helper"](*arguments, **keywords)
        if isinstance(group, dist.ProcessGroup):  # torch returns a number if this rank is not in the group
            self._hooks.on_made(group)
        return group, store

    def _unregister(self, name: str) -> Any:
        self._hooks.on_destroy(name)
        return self._original_functions["_unregister_process_group"](name)

    def _update_default(self, group: Any) -> Any:
        if group is None:
            self._hooks.on_destroy(None)
        return self._original_functions["_update_default_pg"](group)


def _replaced_split_group(
    original: Callable[..., Any], split: Callable[[SplitCall], Any], in_order: Callable[[Sequence[int]], list[int]]
) -> Callable[..., Any]:
    """`in_order` gives listed ranks the order that torch gives them."""

    def split_group(
        parent: Any,
        ranks: Sequence[int],
        timeout: Any = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        **others: Any,
    ) -> Any:
        def call_original() -> Any:
            return original(parent, ranks, timeout, opts, group_name, group_desc, **others)

        return split(
            SplitCall(
                parent=parent,
                ranks=in_order(ranks),
                timeout=timeout,
                name=group_name,
                description=group_desc,
                devices=others.get("device_types"),  # since torch 2.13
                original=call_original,
            )
        )

    return split_group


def _replaced_monitored_barrier(original: Callable[..., Any]) -> Callable[..., Any]:
    def monitored_barrier(group: Any, *arguments: Any, **keywords: Any) -> Any:
        return None if world.is_faked(group) else original(group, *arguments, **keywords)

    return monitored_barrier


def _replaced_set_timeout(original: Callable[..., Any]) -> Callable[..., Any]:
    """A fake backend takes no timeout from torch, and it would be made anew with another one than its peers."""

    def set_timeout(group: Any, timeout: timedelta) -> Any:
        return world.set_timeout_of_fakes(group, timeout) if world.is_faked(group) else original(group, timeout)

    return set_timeout


def _replaced_set_pg_timeout(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_pg_timeout(timeout: timedelta, group: Any = None) -> Any:
        group = group or dist.group.WORLD
        is_faked = isinstance(group, dist.ProcessGroup) and world.is_faked(group)
        return world.set_timeout_of_fakes(group, timeout) if is_faked else original(timeout, group)

    return set_pg_timeout


def _replacement_class(original: type, make: MakeBackend) -> type:
    """A class that makes its objects by `make` and in all else passes for the original."""

    class ReplacementType(type):
        def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
            return make(*arguments, **keywords)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

        def __getattr__(cls, name: str) -> Any:
            return getattr(original, name)

    return ReplacementType(original.__name__, (), {})
