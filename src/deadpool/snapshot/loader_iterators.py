"""Iterators that a StatefulDataLoader has handed out to its script: which, when, and how one comes back to its start.

A step that is cut off may have begun an iterator, and its script goes on holding it: in a variable, or in the frame of
a generator (`while True: for batch in loader: yield batch`). When the step is redone, the script does not call iter()
again but goes on with what it holds. So that iterator becomes one that has not begun: whoever takes its first batch
makes it, and draws the random numbers that iter() draws. That is where the undisturbed run drew them too, if iter() was
followed by the first batch and by no other draw in between. Whether it was is noted here; if not, this process cannot
redo the step exactly, and another one has to.

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
    """Notes every iterator that the loader makes for its script."""

    def __init__(self, name: str, loader: Any) -> None:
        self._name = name
        self._weak = weakref.ref(loader)  # which holds this: a circle would keep its workers until it is collected
        self._here = secrets.token_hex(8)
        self._count = 0
        self._left_at: dict[int, tuple[int, bool]] = {}  # by number: where the script left it for the next one
        self._drew: dict[int, bytes | None] = {}  # by number: the generators after iter(); None: as at the first batch
        self._noting = {kind: _noting(kind, self._first_batch) for kind in _kinds()}
        self._not_begun = {kind: _not_begun(kind, self._begin) for kind in _kinds()}
        loader._get_iterator = self._hand_out

    @property
    def _loader(self) -> Any:
        loader = self._weak()
        assert loader is not None, "an iterator of a loader that is gone"
        return loader

    def mark(self) -> dict[str, Any]:
        """How many there were at this boundary, and where the newest stood."""
        return {"here": self._here, "count": self._count, "at": list(_place(self._loader._iterator))}

    def is_to_begin_anew(self, mark: dict[str, Any]) -> bool:
        """Since the mark the script has made an iterator, and has not touched the one before it: so it will use the new
        one, or make one more. Had it touched the old one, the same object would have to be that first."""
        if mark["here"] != self._here or mark["count"] == self._count:
            return False
        return self._left_at.get(mark["count"]) == tuple(mark["at"])

    def require_exact(self, mark: dict[str, Any] | None) -> None:
        """NotInPlace: between iter() and the first batch the script drew other random numbers."""
        first = mark["count"] + 1 if mark is not None and mark["here"] == self._here else 1
        if any(self._drew.get(number, b"") is not None for number in range(first, self._count + 1)):
            raise NotInPlace(
                f"{self._name}: an iterator was begun in the step that is redone, and random numbers were drawn before "
                "its first batch was taken, or it was not taken: only a fresh process can begin it at the same place"
            )

    def make(self) -> Any:
        """One that is not the script's."""
        return type(self._loader)._get_iterator(self._loader)

    def put_back_to_start(self, held: Any) -> None:
        """Makes `held` one that begins when its first batch is asked for."""
        _end_workers(held)
        held.__class__ = self._not_begun[_stock(held)]
        held.__dict__ = {"_shutdown": True}

    def _begin(self, held: Any) -> None:
        held.__class__ = _stock(held)
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
        held.__class__ = _stock(held)
        if held is self._loader._iterator and self._drew[self._count] == self._generators():
            self._drew[self._count] = None

    def _generators(self) -> bytes:
        own = self._loader.generator
        states = [torch.get_rng_state(), *([] if own is None else [own.get_state()])]
        tensors = b"".join(state.numpy().tobytes() for state in states)
        return tensors + repr((random.getstate(), np.random.get_state(legacy=False))).encode()


def become(held: Any, fresh: Any) -> None:
    """The one that the script holds gets the other's insides, and is looked after in its place."""
    _unwatch_workers(fresh)
    held.__class__ = type(fresh)
    held.__dict__ = fresh.__dict__
    fresh.__class__ = _stock(fresh)
    fresh.__dict__ = {"_shutdown": True}  # nothing is left that its end could close
    _watch_workers(held)


def replaced(held: Any, fresh: Callable[[], Any]) -> Any:
    """What `fresh` makes; as the held one, if there is one."""
    if held is None:
        return fresh()
    _end_workers(held)
    held.__class__ = _stock(held)
    become(held, fresh())
    return held


def _kinds() -> tuple[type, type]:
    module: Any = sys.modules["torchdata.stateful_dataloader.stateful_dataloader"]
    return module._StatefulSingleProcessDataLoaderIter, module._StatefulMultiProcessingDataLoaderIter


def _place(iterator: Any) -> tuple[int, bool]:
    return (-1, False) if iterator is None else (iterator._num_yielded, iterator._finished)


def _stock(iterator: Any) -> type:
    kind = type(iterator)
    return getattr(kind, "_deadpool_stock", kind)


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
    return type(kind.__name__, (kind,), {**methods, "__module__": kind.__module__, "_deadpool_stock": kind})


def _end_workers(iterator: Any) -> None:
    if hasattr(_stock(iterator), "_shutdown_workers") and "_shutdown" in vars(iterator):
        iterator._shutdown_workers()


def _unwatch_workers(iterator: Any) -> None:
    """torch looks after the workers of an iterator under its identity, and raises in this process when one dies."""
    if vars(iterator).get("_worker_pids_set", False):
        signal_handling._remove_worker_pids(id(iterator))


def _watch_workers(iterator: Any) -> None:
    if vars(iterator).get("_worker_pids_set", False):
        signal_handling._set_worker_pids(id(iterator), tuple(worker.pid for worker in iterator._workers))
