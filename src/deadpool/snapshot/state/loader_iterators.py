"""Tracks the iterators that a StatefulDataLoader has given to its script, and puts one back to its start.

A step that was aborted may have begun an iterator, and the script still holds it: in a variable, or in the frame of a
generator (`while True: for batch in loader: yield batch`). When the step is redone, the script does not call iter()
again but continues with that iterator. So the held iterator is reset to one that has not begun: it is made when its
first batch is taken, and draws the random numbers of iter() then. The undisturbed run drew them at the same place, if
nothing else was drawn between iter() and the first batch. This is tracked here. If something was drawn, this process
cannot redo the step exactly, and a fresh one has to.

A script that calls iter() again in the redone step gets a new iterator, as always, and the held one is never begun.
"""

from __future__ import annotations

import random
import secrets
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import signal_handling

from deadpool.errors import NotInPlace

_REMEMBERED = 64


class LoaderIterators:
    """Tracks every iterator that the loader makes for its script."""

    def __init__(self, name: str, loader: Any) -> None:
        self._name = name
        self._weak = weakref.ref(loader)  # the loader refers to this: a cycle would keep its workers until a collection
        self._here = secrets.token_hex(8)
        self._count = 0
        # Both are by number of the iterator: its position when the script made the next one, and the generators' states
        # after iter(), or None if they were the same at the first batch.
        self._left_at: dict[int, tuple[int, bool]] = {}
        self._drew: dict[int, bytes | None] = {}
        self._noting = {kind: _noting(kind, self._first_batch) for kind in _kinds()}
        self._not_begun = {kind: _not_begun(kind, self._begin) for kind in _kinds()}
        loader._get_iterator = self._hand_out

    @property
    def _loader(self) -> Any:
        loader = self._weak()
        assert loader is not None, "an iterator of a loader that is gone"
        return loader

    @property
    def place(self) -> tuple[int, int, bool]:
        """Returns how many iterators there are, how many batches the newest has given, and whether it has ended."""
        return (self._count, *_place(self._loader._iterator))

    def mark(self) -> dict[str, Any]:
        """Returns how many iterators there were at this boundary, and the position of the newest."""
        return {"here": self._here, "count": self._count, "at": list(_place(self._loader._iterator))}

    def is_to_begin_anew(self, mark: dict[str, Any]) -> bool:
        """Returns whether the script has made an iterator since the mark, and has not used the one before it since.
        Then it will use the new one, or make another. If it had used the old one too, it would need both of them."""
        if mark["here"] != self._here or mark["count"] == self._count:
            return False
        return self._left_at.get(mark["count"]) == tuple(mark["at"])

    def require_exact(self, mark: dict[str, Any] | None) -> None:
        """Raises NotInPlace if the script drew other random numbers between iter() and the first batch."""
        first = mark["count"] + 1 if mark is not None and mark["here"] == self._here else 1
        if any(self._drew.get(number, b"") is not None for number in range(first, self._count + 1)):
            raise NotInPlace(
                f"{self._name}: the step that is redone began an iterator, and random numbers were drawn before its "
                "first batch, or no batch was taken from it: only a fresh process can begin it at the same place"
            )

    def make(self) -> Any:
        """Makes an iterator that is not tracked."""
        return type(self._loader)._get_iterator(self._loader)

    def put_back_to_start(self, held: Any) -> None:
        """Resets `held` to an iterator that begins when its first batch is taken."""
        _end_workers(held)
        held.__class__ = self._not_begun[_original_type(held)]
        held.__dict__ = {"_shutdown": True}

    def _begin(self, held: Any) -> None:
        held.__class__ = _original_type(held)
        become(held, self._loader._get_iterator())
        self._loader._iterator = held

    def _hand_out(self) -> Any:
        self._left_at[self._count] = _place(self._loader._iterator)
        made = self.make()
        self._count += 1
        self._drew[self._count] = self._generators()
        for notes in (self._left_at, self._drew):
            notes.pop(self._count - _REMEMBERED, None)
        made.__class__ = self._noting[type(made)]
        return made

    def _first_batch(self, held: Any) -> None:
        held.__class__ = _original_type(held)
        if held is self._loader._iterator and self._drew[self._count] == self._generators():
            self._drew[self._count] = None

    def _generators(self) -> bytes:
        own = self._loader.generator
        states = [torch.get_rng_state(), *([] if own is None else [own.get_state()])]
        tensors = b"".join(state.numpy().tobytes() for state in states)
        return tensors + repr((random.getstate(), np.random.get_state(legacy=False))).encode()


def become(held: Any, fresh: Any) -> None:
    """Moves the contents of `fresh` into `held`, the object that the script holds, and its workers' supervision too."""
    _unwatch_workers(fresh)
    held.__class__ = type(fresh)
    held.__dict__ = fresh.__dict__
    fresh.__class__ = _original_type(fresh)
    fresh.__dict__ = {"_shutdown": True}  # its destructor must not end the workers
    _watch_workers(held)


def replaced(held: Any, fresh: Callable[[], Any]) -> Any:
    """Returns what `fresh` makes, moved into the held iterator if there is one."""
    if held is None:
        return fresh()
    _end_workers(held)
    held.__class__ = _original_type(held)
    become(held, fresh())
    return held


def _kinds() -> tuple[type, type]:
    module: Any = sys.modules["torchdata.stateful_dataloader.stateful_dataloader"]
    return module._StatefulSingleProcessDataLoaderIter, module._StatefulMultiProcessingDataLoaderIter


def _place(iterator: Any) -> tuple[int, bool]:
    return (-1, False) if iterator is None else (iterator._num_yielded, iterator._finished)


def _original_type(iterator: Any) -> type:
    kind = type(iterator)
    return getattr(kind, "_deadpool_original", kind)


def _noting(kind: type, first_batch: Callable[[Any], None]) -> type:
    def take(self: Any) -> Any:
        first_batch(self)
        return next(self)

    return _derived(kind, {"__next__": take})


def _not_begun(kind: type, begin: Callable[[Any], None]) -> type:
    def take(self: Any) -> Any:
        begin(self)
        return next(self)

    def look_up(self: Any, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        begin(self)
        return getattr(self, attribute)

    return _derived(kind, {"__next__": take, "__getattr__": look_up})


def _derived(kind: type, methods: dict[str, Any]) -> type:
    return type(kind.__name__, (kind,), {**methods, "__module__": kind.__module__, "_deadpool_original": kind})


def _end_workers(iterator: Any) -> None:
    if hasattr(_original_type(iterator), "_shutdown_workers") and "_shutdown" in vars(iterator):
        iterator._shutdown_workers()


def _unwatch_workers(iterator: Any) -> None:
    """torch supervises the workers of an iterator under its id(), and raises in this process when one dies."""
    if vars(iterator).get("_worker_pids_set", False):
        signal_handling._remove_worker_pids(id(iterator))


def _watch_workers(iterator: Any) -> None:
    if vars(iterator).get("_worker_pids_set", False):
        signal_handling._set_worker_pids(id(iterator), tuple(worker.pid for worker in iterator._workers))
