"""Stands where torch.distributed looks for ProcessGroupGloo, so that every stock call makes its backend through us.

init_process_group, new_group, DeviceMesh and whatever is built on them all end in `distributed_c10d.ProcessGroupGloo(
store, rank, size, timeout=...)` and check the type of what comes back. User code and backend names stay stock.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup, ProcessGroupGloo

from deadpool.errors import GroupError

Maker = Callable[[dist.Store, int, int, timedelta], Any]

_c10d: Any = dist.distributed_c10d


class Door:
    """Opened once per process; closing it puts torch's own class back."""

    def __init__(self, maker: Maker) -> None:
        self._maker = maker
        self._fake_sequence_numbers: Any = None

    @property
    def is_open(self) -> bool:
        return self._fake_sequence_numbers is not None

    def open(self) -> None:
        if _c10d.ProcessGroupGloo is not ProcessGroupGloo:
            raise GroupError("torch.distributed's ProcessGroupGloo is already replaced in this process")
        _c10d.ProcessGroupGloo = _stand_in(self._maker)
        # torch asks every new gloo backend for sequence numbers; the fake one refuses although it needs none.
        self._fake_sequence_numbers = FakeProcessGroup._set_sequence_number_for_group
        FakeProcessGroup._set_sequence_number_for_group = lambda backend: None

    def close(self) -> None:
        if self.is_open:
            _c10d.ProcessGroupGloo = ProcessGroupGloo
            FakeProcessGroup._set_sequence_number_for_group = self._fake_sequence_numbers
            self._fake_sequence_numbers = None


def _stand_in(maker: Maker) -> type:
    class StandInType(type):
        def __call__(
            cls, store: dist.Store, rank: int, size: int, timeout: timedelta = dist.default_pg_timeout
        ) -> Any:
            return maker(store, rank, size, timeout)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, (ProcessGroupGloo, FakeProcessGroup))

        def __getattr__(cls, name: str) -> Any:
            return getattr(ProcessGroupGloo, name)

    return StandInType("ProcessGroupGloo", (), {})
