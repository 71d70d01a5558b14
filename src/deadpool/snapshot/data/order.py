"""Stands in for the sampler of a loader, so that its order can be begun at any batch.

An order may use the generators of the process. Most do so once, when an epoch begins; where they were then is noted,
with the number of the batch. An order that uses them again and again cannot be drawn once more, because the numbers
that training itself has drawn in between are not known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from deadpool.errors import ConfigError
from deadpool.snapshot.data.generators import Generators, aside
from deadpool.snapshot.data.workers import ToState

_MOST_NOTES = 16

Held = dict[str, bytes]


@dataclass(slots=True)
class Start:
    """Tells what the order and the contents of an epoch follow from."""

    made: bytes  # the generators when the iterator was made, whose workers may serve later epochs too
    made_with: Held  # what the samplers held then
    again: bytes | None = None  # the same when this epoch began, if the iterator is of an earlier one
    again_with: Held | None = None
    data: Held = field(default_factory=dict)  # what dataset and collator held in this process
    workers: dict[int, bytes] = field(default_factory=dict)  # where the workers were when this epoch began
    notes: dict[int, bytes] = field(default_factory=dict)  # generators before the draws that have used them

    def note(self, what: str, index: int, before: Generators) -> None:
        if index in self.notes:
            return
        if len(self.notes) == _MOST_NOTES:
            raise ConfigError(
                f"{what} draws from the random generators of the process for each batch, so what it gives depends on "
                "all that training draws in between, and could not be drawn again after a fault: let it hold a "
                "generator of its own in an attribute, or read the data in a worker (num_workers=1)"
            )
        self.notes[index] = before.encoded()

    def plain(self) -> list[Any]:
        return [self.made, self.made_with, self.again, self.again_with, self.data, self.workers, dict(self.notes)]

    @classmethod
    def of(cls, plain: list[Any]) -> Start:
        made, made_with, again, again_with, data, workers, notes = plain
        return cls(made, made_with, again, again_with, data, dict(workers), dict(notes))


class DrawOrder:
    """`on_begin` is called whenever an iterator asks for the order, with how often it has."""

    def __init__(self, name: str, sampler: Any, start: Start, on_begin: Callable[[int], None] = lambda _: None) -> None:
        self.name, self.sampler, self.start = name, sampler, start
        self._on_begin = on_begin
        self._begun = 0
        self.skip = 0
        self.first: deque[ToState] = deque()  # what comes before the indices
        self.goes_back = False  # the draws that were noted come a second time
        self.newest: _Indices | None = None

    def begin_naturally(self, start: Start) -> None:
        """The next epoch begins, from its first batch."""
        self.start, self.skip = start, 0

    def __iter__(self) -> Iterator[Any]:
        self._begun += 1
        self._on_begin(self._begun)
        self.newest = _Indices(self)
        return self.newest

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)


class _Indices:
    def __init__(self, order: DrawOrder) -> None:
        self._order, self._left = order, iter(order.sampler)
        self._next = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        order = self._order
        self.skip_to(order.skip)
        if order.first:
            return order.first.popleft()
        return self._draw()

    def skip_to(self, index: int) -> None:
        while self._next < index:
            self._draw()

    def _draw(self) -> Any:
        index, start = self._next, self._order.start
        if self._order.goes_back and index in start.notes:
            with aside():
                Generators.decoded(start.notes[index]).restore()
                value = next(self._left)
        else:
            before = Generators.now()
            value = next(self._left)
            if before != Generators.now():
                start.note(f"{self._order.name}: its order ({type(self._order.sampler).__name__})", index, before)
        self._next += 1
        return value
