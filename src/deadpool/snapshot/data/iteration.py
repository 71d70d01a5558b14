"""One epoch of a loader as the script sees it: an iterator around torch's, with the batches that were drawn from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deadpool.errors import ConfigError
from deadpool.snapshot.data.generators import Generators
from deadpool.snapshot.data.kept_batches import Draw, Draws
from deadpool.snapshot.data.order import DrawOrder, Start

if TYPE_CHECKING:
    from deadpool.snapshot.data.position import DataPosition


@dataclass(frozen=True, slots=True)
class Target:
    """A place in an epoch: so many batches were used, and with `ahead` some more were drawn, with the generators before
    each if it used them. `held` and `source` are of dataset and collator in this process."""

    number: int
    drawn: int
    start: Start
    workers: dict[int, bytes]
    held: dict[str, bytes]
    ahead: list[bytes | None]
    source: Any


class Iteration:
    def __init__(self, owner: DataPosition) -> None:
        self._owner = owner
        self.inner: Any = None
        self.order: DrawOrder
        self.start: Any = None
        self.target: Target | None = None  # it stands there as soon as it is asked for a batch
        self.fallback: Target | None = None  # of the batches that are given again
        self.before: Generators | None = None
        self.passes_over = False
        self.was_loaded = False  # the dataset's own state, and no batch was drawn since
        self.workers: dict[int, bytes] = {}
        self.iterators: list[object] = []  # that dataset, collator and sampler held when it began
        self.begin_as(0)

    def begin_as(self, number: int) -> None:
        self.number, self.drawn, self.ended, self.has_begun = number, 0, False, True
        self.is_empty = False  # it has no other batches than those that are given again, and has not said so
        self.end: Target | None = None
        self.target = self.fallback = None
        self.draws = Draws(0)
        self.replay: deque[Draw] = deque()
        self.ahead: deque[bytes | None] = deque()
        self._is_cut, self._ahead_until = False, 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._owner.draw(self)

    def __len__(self) -> int:
        return len(self._owner._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or vars(self).get("inner") is None:
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """torch calls it where workers live on."""
        self._owner.begin(self)

    def take(self) -> Any:
        """Returns the next batch of torch's iterator. One that was cut off in the midst of it is used no more."""
        if self._is_cut:
            raise ConfigError(
                f"{self._owner._name}: an error came out of the loader, and another batch was asked of the same "
                "iterator: how much of its order was used up is not known. Let the dataset or the collator handle what "
                "is broken"
            )
        self.before, self._is_cut = Generators.now(), True
        try:
            data = next(self.inner)
        except StopIteration:
            self.ended, self._is_cut = True, False
            raise
        self._is_cut = False
        return data

    def note(self, draw: Draw, *, needed: int) -> None:
        self.draws.add(draw, needed)
        self.drawn = draw.index + 1

    # --- going back --------------------------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        return self.ended and not self.replay

    @property
    def has_batches_ahead(self) -> bool:
        """Whether workers may have made batches that nobody has drawn. A library that knows how many there are does
        not ask for one more, so that the iterator has not said that it is at its end."""
        return not self.ended and getattr(self.inner, "_tasks_outstanding", 1) > 0

    def draws_since(self, index: int) -> list[Draw] | None:
        """Returns the draws from there on, if all of them are kept and torch's iterator stands behind the last one."""
        if self._is_cut or self.target is not None or not self.has_begun:
            return None
        return self.draws.since(index)

    def go_back(self, target: Target, draws: list[Draw]) -> None:
        self.replay, self.drawn = deque(draws), target.drawn
        self.fallback, self._ahead_until = target, target.drawn + len(target.ahead)
        self.ahead.clear()

    def go_back_to_older(self, target: Target, draws: list[Draw], all_draws: Draws, end: Target) -> None:
        """Returns to the iteration before: its own batches are left, and will be drawn again in another iteration."""
        self.leave_inner()
        self.begin_as(target.number)
        self.start, self.workers, self.draws = end.start, end.workers, all_draws
        self.is_empty, self.end = True, end
        self.go_back(target, draws)

    def replay_next(self) -> tuple[Any] | None:
        """Returns the next of the batches that are given again. None: it was changed, and has to be drawn again."""
        draw = self.replay[0]
        if not draw.kept.is_unchanged:
            return None
        self.replay.popleft()
        if draw.index >= self._ahead_until and draw.after is not None:
            draw.after.restore()
        self.drawn = draw.index + 1
        return (draw.kept.batch(),)

    def target_of_changed(self) -> Target:
        """Returns where the iteration stands among batches that are given again, if the next one was changed."""
        draw, found = self.replay[0], self.fallback
        assert found is not None
        ahead = found.ahead[draw.index - found.drawn :]
        return Target(found.number, draw.index, self.start, draw.workers, draw.held, ahead, draw.source)

    def stand_at(self, target: Target) -> None:
        self.leave_inner()
        self.begin_as(target.number)
        self.drawn, self.start, self.target = target.drawn, target.start, target
        self.draws = Draws(target.drawn)

    def stand_at_end(
        self, number: int, start: Start | None, workers: dict[int, bytes], used: int, *, keeps_inner: bool
    ) -> None:
        if not keeps_inner:
            self.leave_inner()
            self.begin_as(number)
            self.start, self.workers = start, dict(workers)
        self.drawn, self.ended = used, True
        self.replay.clear()

    def wait_to_begin(self, start: Start | None, workers: dict[int, bytes]) -> None:
        """Begins when its first batch is asked for. `start` and `workers` are of the iteration before."""
        self.leave_inner()
        self.has_begun, self.target = False, None
        self.start, self.workers = start, dict(workers)
        self.replay.clear()

    def leave_inner(self) -> None:
        inner, self.inner = self.inner, None
        if hasattr(inner, "_shutdown_workers"):
            inner._shutdown_workers()
        self.draws = Draws(self.drawn)
