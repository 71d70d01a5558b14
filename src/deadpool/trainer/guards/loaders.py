"""Data that is drawn where no recovery draws it again.

`DrawnBatches` finds batches that are drawn before the step that uses them: `zip(loader, job.steps(n))`, or a loop
over the loader that asks for a step inside.

Such a batch lies before the boundary, in a variable: a rank that redoes the step goes on from the position behind
it. The position of a loader is compared between the end of a step's block and the boundary that follows. A loader
that was read to its end there was an evaluation, which is part of the step before. One draw may be anything; a draw
behind two steps in a row is how the loop is written.

`UnknownLoaders` finds iterators of torch's DataLoader, and of torchdata's StatefulDataLoader, that steps draw from and
protect() does not know: such as that of a loader that a later step has put in the place of the protected one.

A recovery cannot put such an iterator back: survivors go on behind the batch of the step that is redone, and a
newcomer begins at the first one. An iterator that begins and ends within one step, as in an evaluation, is exact; so
only one that gives batches in two steps is named, or one that the loop hands on to its next step in a variable. So that
no step is left out, `__next__` and `_reset` of torch's iterators are replaced from the first step on.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from deadpool.snapshot.data.position import DataPosition
from deadpool.snapshot.record.record import encode
from deadpool.snapshot.state.cures import is_off
from deadpool.snapshot.state.loaders import LoaderPosition
from deadpool.trainer.guards.carried_gradients import frames_of_script
from deadpool.trainer.guards.guard import Findings, Rule
from deadpool.trainer.guards.state_in_variables import carried_names

_POSITIONS = (LoaderPosition, DataPosition)
_IN_A_ROW = 2
_FIRST_STEPS = 4
"""The position of an object that is no loader is its state_dict(), which is compared in so many steps only."""


class DrawnBatches:
    def __init__(self, findings: Findings, stateful: Mapping[str, Any]) -> None:
        self._findings = findings
        self._loaders = {name: each for name, each in stateful.items() if isinstance(each, _POSITIONS)}
        self._streams = {name: each for name, each in stateful.items() if _is_stream(each)}
        self._seen = 0
        self._left: dict[str, Hashable] = {}
        self._in_a_row: dict[str, int] = {}

    def enter_step(self, number: int) -> None:
        self._left = {}

    def leave_step(self, number: int) -> None:
        if not is_off("D9"):
            self._left = self._places()

    def at_boundary(self, number: int) -> None:
        if not self._left:
            return
        for name, place in self._places().items():
            self._compare(name, self._left[name], place, number)
        self._left = {}
        self._seen += 1

    def _compare(self, name: str, left: Hashable, place: Hashable, number: int) -> None:
        moved = place != left and not (name in self._loaders and self._loaders[name].is_at_end)
        self._in_a_row[name] = self._in_a_row.get(name, 0) + 1 if moved else 0
        if self._in_a_row[name] == _IN_A_ROW:
            self._findings.report(
                Rule.BATCH_BEFORE_STEP,
                f"{name} moves between the end of one step's block and the start of the next: the batch is drawn "
                "before the step that uses it, and would be skipped where that step is redone.",
                step=number,
            )

    def _places(self) -> dict[str, Hashable]:
        places: dict[str, Hashable] = {name: loader.place for name, loader in self._loaders.items()}
        if self._seen < _FIRST_STEPS:
            places |= {name: encode(each.state_dict(), name) for name, each in self._streams.items()}
        return places


def _is_stream(value: Any) -> bool:
    """Objects of the script that give one batch after the other, and loaders of torchdata's nodes."""
    kind = type(value)
    if isinstance(value, _POSITIONS):
        return False
    return isinstance(getattr(kind, "__next__", None), Callable) or (  # type: ignore[arg-type]
        kind.__module__.startswith("torchdata.") and hasattr(kind, "__iter__")
    )


_ITERATOR: Any = _BaseDataLoaderIter
_DEPTH = 6
_REMEDY = (
    "Pass the loader to protect(). Where a later step makes another one, keep it in an object whose state_dict() has "
    "the loader's and whose load_state_dict() makes it."
)


class UnknownLoaders:
    def __init__(
        self, findings: Findings, stateful: Mapping[str, Any], carried: Callable[[], Iterable[Any]] = tuple
    ) -> None:
        """`carried` gives the objects of the ranks that this process carries, which may change with each recovery."""
        self._findings, self._stateful, self._carried = findings, stateful, carried
        self._drawn_in: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # the first step of each
        self._judged: weakref.WeakSet[Any] = weakref.WeakSet()  # iterators that are protected, or were named
        self._new: weakref.WeakSet[Any] = weakref.WeakSet()  # first drawn from in this step
        self._number = 0
        self.enabled = True  # False: a library owns the loop, and its integration the position of its loaders

    def enter_step(self, number: int) -> None:
        self._number = number
        if self.enabled:
            _watch.begin(self)

    def leave_step(self, number: int) -> None:
        """What is drawn behind the block counts too: the next step uses it."""

    def at_boundary(self, number: int) -> None:
        """An iterator that the loop hands on to its next step in a variable is named before that step draws from it."""
        new, self._new = [each for each in self._new if each not in self._judged], weakref.WeakSet()
        if new:
            carried = _carried_ids()
            for each in new:
                if id(each) in carried:
                    self._judge(each)

    def begun(self, iterator: Any) -> None:
        """The loader gives its first batch next: persistent workers keep one iterator for all epochs."""
        self._drawn_in.pop(iterator, None)

    def drawn(self, iterator: Any) -> None:
        first = self._drawn_in.get(iterator)
        if first is None:
            self._drawn_in[iterator] = self._number
            self._new.add(iterator)
        elif first != self._number and iterator not in self._judged:
            self._judge(iterator)

    def _judge(self, iterator: Any) -> None:
        self._judged.add(iterator)
        if self._is_protected(iterator):
            return
        self._findings.report(
            Rule.UNPROTECTED_LOADER,
            f"Steps draw from an iterator of a {_kind_of(iterator)} that protect() does not know: where a step is "
            "redone, its batch would be another one.",
            remedy=_REMEDY if _is_stateful(iterator) else "",
            kind=_kind_of(iterator),
            step=self._number,
        )

    def _is_protected(self, iterator: Any) -> bool:
        """An object of the script may keep the position of a loader that it owns."""
        of_loader = (iterator, iterator.__dict__.get("_index_sampler"))
        return any(
            each.owns(iterator) if isinstance(each, DataPosition) else _leads_to(each, of_loader)
            for each in (*self._stateful.values(), *self._carried())
        )


class _IteratorWatch:
    """Tells the guard of this process of each iterator of torch's that begins, and of each batch: some microseconds."""

    def __init__(self) -> None:
        self._guard: Callable[[], UnknownLoaders | None] = lambda: None
        self._originals: tuple[Any, Any] | None = None

    def begin(self, guard: UnknownLoaders) -> None:
        if self._originals is not None:
            self._guard = weakref.ref(guard)
            return
        self._guard = weakref.ref(guard)
        draw, reset = self._originals = _ITERATOR.__next__, _ITERATOR._reset

        @functools.wraps(draw)
        def watched_draw(iterator: Any) -> Any:
            batch = draw(iterator)
            if (told := self._guard()) is not None:
                told.drawn(iterator)
            return batch

        @functools.wraps(reset)
        def watched_reset(iterator: Any, *args: Any, **kwargs: Any) -> Any:
            if (told := self._guard()) is not None:
                told.begun(iterator)
            return reset(iterator, *args, **kwargs)

        _ITERATOR.__next__, _ITERATOR._reset = watched_draw, watched_reset

    def end(self) -> None:
        if self._originals is not None:
            (_ITERATOR.__next__, _ITERATOR._reset), self._originals = self._originals, None


_watch = _IteratorWatch()


def stop_watching() -> None:
    """Puts torch's own methods back: for processes with several loops, such as tests."""
    _watch.end()


def _carried_ids() -> set[int]:
    """Returns the objects that the script's loop hands on to its next step in variables."""
    return {
        id(frame.f_locals.get(name, frame.f_globals.get(name)))
        for frame in frames_of_script()
        for name in carried_names(frame.f_code, frame.f_lasti)
    }


def _kind_of(iterator: Any) -> str:
    return "StatefulDataLoader" if _is_stateful(iterator) else "torch DataLoader"


def _is_stateful(iterator: Any) -> bool:
    module: Any = sys.modules.get("torchdata.stateful_dataloader.stateful_dataloader")
    return module is not None and isinstance(iterator, module._StatefulBaseDataLoaderIter)


def _leads_to(value: Any, wanted: tuple[Any, ...]) -> bool:
    wanted_ids = {id(each) for each in wanted if each is not None}
    level, seen = [value], set[int]()
    for _ in range(_DEPTH + 1):
        if any(id(each) in wanted_ids for each in level):
            return True
        seen.update(map(id, level))
        level = [part for each in level for part in _inside(each) if id(part) not in seen]
    return False


def _inside(value: Any) -> list[Any]:
    if isinstance(value, type):
        return []
    parts = getattr(value, "__dict__", None)
    inner = list(parts.values()) if isinstance(parts, dict) else []
    inner += list(value.values()) if isinstance(value, dict) else []
    return inner + (list(value) if isinstance(value, (list, tuple)) and len(value) < 100 else [])
