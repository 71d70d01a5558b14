"""Writes to parameters that torch does not count.

`UncountedWrites` finds out whether a script writes into parameters in ways that torch does not count: through
`.data`, by numpy, or through another tensor over the same memory.

A copy is made while the next step runs, and is given up if the counters of its tensors show a write meanwhile.
Nothing shows an uncounted one, so that a copy could be half of this version and half of the next. But elements
differ then although the counter is the same: such a copy is given up too, and from then on copies are made at the
end of a step. They are compared before the optimizer steps, since fused ones are not counted either and disturb no
copy; in a step without an optimizer at its end.

At the first boundaries, and now and then later, whole tensors are compared by their digests, up to a number of
bytes: a script may write into single rows only. At the others some elements of some tensors are. Which tensors
changes from boundary to boundary. Only host memory is looked at here, since the host would wait for a device:
uncounted_writes.py.

`DeviceSums` finds writes to parameters in the memory of a device that torch does not count, without a wait for the
device.

At some boundaries the device adds up the bits of each parameter, and once more before the optimizer steps. Whether
the sums differ is worked out on the device too, and read at a later boundary, when it has got that far. So a first
copy that was torn may be committed before anybody knows: the script is named, and later copies are made at the end
of a step. uncounted_writes.py does the same for host memory, and knows in time.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor

from deadpool.snapshot.copying.bulk import LiveBulk
from deadpool.snapshot.record.tensors import integer_view
from deadpool.snapshot.state import cures
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

    def take(self, bulk: LiveBulk) -> None:
        """Adds up the parameters as they are now. Call it at a boundary."""
        if self.written or _is_capturing():
            return
        chosen = {key: each for key, each in bulk.locals.items() if self._is_wanted(key, each)}
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


_TENSORS, _ELEMENTS = 16, 16
_FIRST = 6  # boundaries at which whole tensors are compared: those before steps 0 to 4, and one that came back
_WHOLE_BYTES = 64 << 20
"""A digest of so many bytes takes about 10 ms, twice per boundary that is looked at closely."""


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    tensor: Tensor  # of the bulk: it stays at its memory whatever the script puts under its parameter
    count: int
    is_whole: bool
    content: object

    @property
    def was_overwritten(self) -> bool:
        now = _sample(self.tensor, self.is_whole)
        return now.count == self.count and now.content != self.content


class UncountedWrites:
    """Finds writes that no counter shows. Only the main thread may use it, at boundaries and at rest. The copying
    thread may ask `show_now` too, as long as the copy is not settled: until then nobody takes other samples."""

    def __init__(self, on_device: DeviceSums | None = None) -> None:
        self.found = False
        self.on_device = on_device or DeviceSums()
        self._samples: list[_Sample] = []
        self._is_compared = True
        self._looks = self._next = 0

    def compare(self) -> None:
        """Compares the samples, if they have not been compared since they were taken."""
        if not self._is_compared:
            self._is_compared = True
            self.found = self.found or self.show_now
            self.on_device.compare()

    def look(self, bulk: LiveBulk) -> None:
        """Compares the samples of the last call, and takes new ones."""
        self.compare()
        self._is_compared = False
        self.found = self.on_device.read() or self.found
        self._samples = [] if self.found or cures.is_off("D3") else list(self._choose(bulk))
        if self._is_thorough and not self.found and not cures.is_off("D3"):
            self.on_device.take(bulk)
        self._looks += 1

    @property
    def _is_thorough(self) -> bool:
        return self._looks < _FIRST or self._looks & (self._looks - 1) == 0

    @property
    def show_now(self) -> bool:
        """Returns whether something was overwritten since the samples were taken."""
        return any(sample.was_overwritten for sample in self._samples)

    def _choose(self, bulk: LiveBulk) -> Iterator[_Sample]:
        tensors = [
            local
            for key, local in bulk.locals.items()
            if key[0] == "param" and local.device.type == "cpu" and local.is_contiguous() and local.numel()
        ]
        start, self._next = self._next, (self._next + _TENSORS) % max(len(tensors), 1)
        in_turn = itertools.chain(tensors[start:], tensors[:start])
        left = _WHOLE_BYTES if self._is_thorough else 0
        for place, tensor in enumerate(in_turn):
            is_whole = tensor.nbytes <= left
            if is_whole or place < _TENSORS:
                left -= tensor.nbytes if is_whole else 0
                yield _sample(tensor, is_whole)


def _sample(tensor: Tensor, is_whole: bool) -> _Sample:
    if is_whole:
        memory = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())  # numpy() would mark its storage
        return _Sample(tensor, tensor._version, is_whole, xxhash.xxh3_64_intdigest(memory))
    flat = integer_view(tensor).view(-1)
    elements = flat[:: max(1, flat.numel() // _ELEMENTS)].tolist()
    return _Sample(tensor, tensor._version, is_whole, elements)
