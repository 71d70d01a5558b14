"""Stands between torch.distributed's functions and the process groups, for as long as somebody has to listen.

Every collective of the Python API, blocking or not, single or batched, with tensors or with objects, ends in a method
of ProcessGroup, so those are replaced and not the functions: a script may have imported the functions under names of
its own, torch compares `irecv` by identity, and torch.compile knows the functions by identity too. What C++ does by
itself (the reducer of DDP, DTensor's functional collectives) does not come through here.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist

from deadpool.backend.noted_work import NotedWork
from deadpool.backend.recorded_collectives import Key

# Some names are those of torch 2.11, some those of 2.13. Reductions that scatter deliver gradients and are left alone.
DELIVERING = (
    *("recv", "recv_anysource", "broadcast", "scatter", "gather", "reduce", "allreduce", "allgather"),
    *("_allgather_base", "all_gather_single", "alltoall", "alltoall_base", "all_to_all_single"),
)

_GROUP: Any = dist.ProcessGroup
_name_of: Callable[[Any], str] = dist.distributed_c10d._get_process_group_name


class Listener(Protocol):
    def __call__(self, key: Key, outputs: list[torch.Tensor], call: Callable[[], Any]) -> Any:
        """In place of the collective, which is `call`; returns its work."""


class Interception:
    """One listener at a time; counts calls, so that the same call has the same key in every process of a rank."""

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._stock: dict[str, Any] = {}
        self._batches: dict[str, list[Callable[[], None]]] = {}  # by group: what its batch delivers, once waited for
        self.counts: Counter[tuple[str, str]] = Counter()

    def begin(self, listener: Listener) -> None:
        self._listener = listener
        self._batches.clear()
        for name in DELIVERING:
            self._replace(name, functools.partial(self._around, name))
        self._replace("_start_coalescing", self._opening)
        self._replace("_end_coalescing", self._closing)

    def put_off(self, key: Key, note: Callable[[], None]) -> bool:
        """Inside a batch of the key's group: the works of single operations are not those that are waited for."""
        batch = self._batches.get(key[1])
        if batch is not None:
            batch.append(note)
        return batch is not None

    def end(self) -> None:
        for name, method in self._stock.items():
            setattr(_GROUP, name, method)
        self._stock.clear()
        self._listener = None

    def _replace(self, name: str, around: Callable[[Any], Any]) -> None:
        if name in vars(_GROUP) and name not in self._stock:
            self._stock[name] = vars(_GROUP)[name]
            setattr(_GROUP, name, around(getattr(_GROUP, name)))

    def _opening(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def opened(group: Any, *arguments: Any) -> Any:
            self._batches[_name_of(group)] = []
            return method(group, *arguments)

        return opened

    def _closing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def closed(group: Any, *arguments: Any) -> Any:
            work, notes = method(group, *arguments), self._batches.pop(_name_of(group), [])

            def note_all() -> None:
                for note in notes:
                    note()

            return NotedWork(work, note_all) if notes and work is not None else work

        return closed

    def _around(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def listened(group: Any, *arguments: Any, **keywords: Any) -> Any:
            def call() -> Any:
                return method(group, *arguments, **keywords)

            if self._listener is None or not arguments:  # all by keyword: not one of torch.distributed's functions
                return call()
            return self._listener(self._key(name, group), list(_tensors(arguments[0])), call)

        return listened

    def _key(self, name: str, group: Any) -> Key:
        place = (name, _name_of(group))
        self.counts[place] += 1
        return (*place, self.counts[place] - 1)


def _tensors(outputs: Any) -> Iterator[torch.Tensor]:
    """What a collective fills is its first argument: a tensor, a list of them, or a list of lists."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    else:
        for each in outputs:
            yield from _tensors(each)
