"""Stands where torch.distributed makes gloo backends, so that every stock call makes them through us.

init_process_group, new_group, DeviceMesh and whatever is built on them all go through
`distributed_c10d._new_process_group_helper`, which calls `ProcessGroupGloo(store, rank, size, timeout=...)` and
checks the type of what comes back. Both names are replaced there; user code and backend names stay stock.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroupGloo

from deadpool.errors import GroupError

MakeBackend = Callable[[dist.Store, int, int, timedelta], Any]
Finish = Callable[[Any], None]

_c10d: Any = dist.distributed_c10d


class Door:
    """`make` makes each gloo backend; `finish` sees each new group of this rank before anybody uses it."""

    def __init__(self, make: MakeBackend, finish: Finish) -> None:
        self._make = make
        self._finish = finish
        self._stock_helper: Any = None

    @property
    def is_open(self) -> bool:
        return self._stock_helper is not None

    def open(self) -> None:
        if _c10d.ProcessGroupGloo is not ProcessGroupGloo:
            raise GroupError("torch.distributed's ProcessGroupGloo is already replaced in this process")
        self._stock_helper = _c10d._new_process_group_helper
        _c10d._new_process_group_helper = self._new_group
        _c10d.ProcessGroupGloo = _stand_in(self._make)

    def close(self) -> None:
        if self.is_open:
            _c10d.ProcessGroupGloo = ProcessGroupGloo
            _c10d._new_process_group_helper = self._stock_helper
            self._stock_helper = None

    def _new_group(self, *arguments: Any, **keywords: Any) -> Any:
        group, store = self._stock_helper(*arguments, **keywords)
        if isinstance(group, dist.ProcessGroup):  # a number where this rank is no member
            self._finish(group)
        return group, store


def _stand_in(make: MakeBackend) -> type:
    class StandInType(type):
        def __call__(
            cls, store: dist.Store, rank: int, size: int, timeout: timedelta = _c10d.default_pg_timeout
        ) -> Any:
            return make(store, rank, size, timeout)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, ProcessGroupGloo)

        def __getattr__(cls, name: str) -> Any:
            return getattr(ProcessGroupGloo, name)

    return StandInType("ProcessGroupGloo", (), {})
