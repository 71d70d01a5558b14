"""Stands where torch.distributed makes gloo and NCCL backends, so that every plain call makes them through us.

init_process_group, new_group, DeviceMesh and whatever is built on them all go through
`distributed_c10d._new_process_group_helper`, which calls `ProcessGroupGloo(store, rank, size, timeout=...)` or
`ProcessGroupNCCL(store, rank, size, options)` and checks the type of what comes back. These names are replaced there;
user code and backend names stay stock. `ProcessGroup.split_group` makes its backends in C++, so the method is replaced.
So is `ProcessGroup.monitored_barrier`, the one operation of gloo that fake backends refuse; a rehearsal passes it by.
Every destruction of a group passes by here too, before a connection of it can be closed: `_unregister_process_group`
ends that of one, `_update_default_pg(None)` begins that of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d

from deadpool.backend import world
from deadpool.errors import GroupError

Make = Callable[..., Any]
Finish = Callable[[Any], None]
Destroying = Callable[["str | None"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A call of `parent.split_group(...)`; `ranks` are the parent's. None is what the parent has."""

    parent: Any
    ranks: list[int]
    timeout: timedelta | None
    name: str | None
    description: str | None
    devices: list[Any] | None
    call: Callable[[], Any]  # torch's own, which connects the new group


_c10d: Any = dist.distributed_c10d
_ProcessGroup: Any = dist.ProcessGroup


class Door:
    """`makers` make the backends, by the name of torch's class; `finish` sees each new group of this rank before
    anybody uses it; `split` gives what a group's split_group() returns; `destroying` hears the name of each group
    that is destroyed, or None for all of them."""

    def __init__(
        self, makers: Mapping[str, Make], finish: Finish, split: Callable[[Split], Any], destroying: Destroying
    ) -> None:
        self._makers = {name: make for name, make in makers.items() if hasattr(_distributed_c10d, name)}
        self._finish, self._split, self._destroying = finish, split, destroying
        self._stock_helper: Any = None
        self._stock_methods: dict[str, Any] = {}
        self._stock_ends: dict[str, Any] = {}

    @property
    def is_open(self) -> bool:
        return self._stock_helper is not None

    def open(self) -> None:
        for name, make in self._makers.items():
            stock = getattr(_distributed_c10d, name)
            if getattr(_c10d, name) is not stock:
                raise GroupError(f"torch.distributed's {name} is already replaced in this process")
            setattr(_c10d, name, _stand_in(stock, make))
        self._stock_helper = _c10d._new_process_group_helper
        _c10d._new_process_group_helper = self._new_group
        self._replace_method("split_group", lambda stock: _splitting(stock, self._split))
        self._replace_method("monitored_barrier", _monitoring)
        self._stock_ends = {name: getattr(_c10d, name) for name in ("_unregister_process_group", "_update_default_pg")}
        _c10d._unregister_process_group = self._unregister
        _c10d._update_default_pg = self._update_default

    def close(self) -> None:
        if self.is_open:
            for name in self._makers:
                setattr(_c10d, name, getattr(_distributed_c10d, name))
            _c10d._new_process_group_helper = self._stock_helper
            self._stock_helper = None
            for name, stock in self._stock_methods.items():
                setattr(_ProcessGroup, name, stock)
            for name, stock in self._stock_ends.items():
                setattr(_c10d, name, stock)

    def _replace_method(self, name: str, around: Callable[[Any], Any]) -> None:
        if (stock := getattr(_ProcessGroup, name, None)) is not None:
            self._stock_methods[name] = stock
            setattr(_ProcessGroup, name, around(stock))

    def _new_group(self, *arguments: Any, **keywords: Any) -> Any:
        group, store = self._stock_helper(*arguments, **keywords)
        if isinstance(group, dist.ProcessGroup):  # a number where this rank is no member
            self._finish(group)
        return group, store

    def _unregister(self, name: str) -> Any:
        self._destroying(name)
        return self._stock_ends["_unregister_process_group"](name)

    def _update_default(self, group: Any) -> Any:
        if group is None:
            self._destroying(None)
        return self._stock_ends["_update_default_pg"](group)


def _splitting(stock: Callable[..., Any], split: Callable[[Split], Any]) -> Callable[..., Any]:
    def split_group(
        parent: Any,
        ranks: Sequence[int],
        timeout: Any = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        **others: Any,
    ) -> Any:
        def call() -> Any:
            return stock(parent, ranks, timeout, opts, group_name, group_desc, **others)

        return split(
            Split(
                parent=parent,
                ranks=sorted(ranks),
                timeout=timeout,
                name=group_name,
                description=group_desc,
                devices=others.get("device_types"),  # since torch 2.13
                call=call,
            )
        )

    return split_group


def _monitoring(stock: Callable[..., Any]) -> Callable[..., Any]:
    def monitored_barrier(group: Any, *arguments: Any, **keywords: Any) -> Any:
        return None if world.is_faked(group) else stock(group, *arguments, **keywords)

    return monitored_barrier


def _stand_in(stock: type, make: Make) -> type:
    class StandInType(type):
        def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
            return make(*arguments, **keywords)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, stock)

        def __getattr__(cls, name: str) -> Any:
            return getattr(stock, name)

    return StandInType(stock.__name__, (), {})
