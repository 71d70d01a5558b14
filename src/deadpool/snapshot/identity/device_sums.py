"""Finds writes to parameters in the memory of a device that torch does not count, without a wait for the device.

At some boundaries the device adds up the bits of each parameter, and once more before the optimizer steps. Whether the
sums differ is worked out on the device too, and read at a later boundary, when it has got that far. So a first copy
that was torn may be committed before anybody knows: the script is named, and later copies are made at the end of a
step. uncounted_writes.py does the same for host memory, and knows in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from deadpool.snapshot.copying.bulk import CopyPlan
from deadpool.snapshot.record.tensors import integer_view
from deadpool.snapshot.state.objects import Key, describe

_LARGEST_ITEM = 8  # bytes of an element: nobody adds up integers of 16


@dataclass(frozen=True, slots=True, eq=False)
class _Sum:
    key: Key
    tensor: Tensor
    count: int
    value: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Verdict:
    """Which of the parameters differ, on its way to the host."""

    keys: list[Key]
    differ: Tensor
    is_there: Callable[[], bool]


def is_on_device(tensor: Tensor) -> bool:
    return tensor.device.type == "cuda"


class DeviceSums:
    """Sums on the device, which only the main thread may use. `is_looked_at` is for tests, where host memory stands for
    a device's.
    """

    def __init__(self, is_looked_at: Callable[[Tensor], bool] = is_on_device) -> None:
        self._is_looked_at = is_looked_at
        self._sums: list[_Sum] = []
        self._verdicts: list[_Verdict] = []
        self.written: tuple[str, ...] = ()  # names of the parameters that were found first

    def take(self, plan: CopyPlan) -> None:
        """Adds up the parameters as they are now. Call it at a boundary."""
        if self.written or _is_capturing():
            return
        chosen = {key: each for key, each in plan.locals.items() if self._is_wanted(key, each)}
        self._sums = [_Sum(key, each, each._version, value) for (key, each), value in _add_up(chosen)]

    def compare(self) -> None:
        """Compares with the parameters as they are now, unless that was done. Nothing is known when it returns."""
        sums, self._sums = self._sums, []
        same = {each.key: each for each in sums if each.tensor._version == each.count}
        if not same or _is_capturing():
            return
        now = [value for _, value in _add_up({key: each.tensor for key, each in same.items()})]
        by_device: dict[torch.device, list[int]] = {}
        for index, value in enumerate(now):
            by_device.setdefault(value.device, []).append(index)
        keys, before = list(same), [each.value for each in same.values()]
        for indices in by_device.values():
            differ = torch.stack([before[i] for i in indices]) != torch.stack([now[i] for i in indices])
            self._verdicts.append(_bring_home([keys[i] for i in indices], differ))

    def read(self) -> bool:
        """Reads what has arrived. Returns whether a write was found, now or before."""
        while self._verdicts and self._verdicts[0].is_there():
            verdict = self._verdicts.pop(0)
            found = [key for key, differs in zip(verdict.keys, verdict.differ.tolist(), strict=True) if differs]
            self.written = self.written or tuple(map(describe, found))
        return bool(self.written)

    def _is_wanted(self, key: Key, tensor: Tensor) -> bool:
        is_plain = tensor.numel() > 0 and tensor.dtype.itemsize <= _LARGEST_ITEM
        return key[0] == "param" and is_plain and self._is_looked_at(tensor)


def _add_up(tensors: Mapping[Key, Tensor]) -> Iterable[tuple[tuple[Key, Tensor], Tensor]]:
    with torch.no_grad():
        sums = [integer_view(each).sum(dtype=torch.int64) for each in tensors.values()]
    return zip(tensors.items(), sums, strict=True)


def _bring_home(keys: list[Key], differ: Tensor) -> _Verdict:
    if differ.device.type != "cuda":
        return _Verdict(keys, differ, lambda: True)
    here = torch.empty(differ.shape, dtype=differ.dtype, pin_memory=True)
    with torch.cuda.device(differ.device):
        here.copy_(differ, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
    return _Verdict(keys, here, arrived.query)


def _is_capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
