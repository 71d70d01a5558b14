"""Captures and restores the position of torch's DataLoader, whose iterators have none themselves.

The script gets an iterator of ours around torch's (iteration.py), and everything that it draws is noted. A rank that
returns to an earlier step keeps torch's iterator with its workers, and is given the batches that it has drawn since
once more, as far as they are kept and were not changed. Where they are not, and in a process that was not there,
another of torch's iterators is made and brought to the place (torch_iterators.py). Which iteration it is that a rank
returns to, this one or one before it, earlier_iterations.py knows.

Generators of the process are put where they were for it, and back. Batches that were drawn ahead of their step, as
libraries do, are drawn again with the generators of that time.
"""

from __future__ import annotations

import secrets
from collections import UserDict, deque
from collections.abc import Callable
from typing import Any

from deadpool.errors import ConfigError, NotInPlace
from deadpool.snapshot.data.earlier_iterations import EarlierIterations
from deadpool.snapshot.data.generators import Generators, aside
from deadpool.snapshot.data.iteration import Iteration, Target
from deadpool.snapshot.data.order import Start
from deadpool.snapshot.data.torch_iterators import TorchIterators

NOT_BEGUN = -1


class DataPosition:
    """`consumed` tells how many batches of the iteration the steps have used, where a library draws ahead of them.
    With `enters_again`, iter() is called again after each fault, and then gives the iteration that is under way."""

    def __init__(
        self, name: str, loader: Any, *, consumed: Callable[[], int] | None = None, enters_again: bool = False
    ) -> None:
        self._name, self._loader, self._torch = name, loader, TorchIterators(name, loader)
        self._consumed, self._enters_again = consumed, enters_again
        self.ahead: Callable[[], int] | None = None  # instead: how many of the batches no step has used
        self._here = secrets.token_hex(8)
        self._count = 0
        self._current: Iteration | None = None
        self._is_unclaimed = False  # the next iter() gives the current iteration
        self.keeps_first = 0  # how many batches of an epoch's beginning its end is made with
        self._first: list[Any] = []
        self._given_again: deque[Any] = deque()
        self._is_left = False  # a library is through with the current iteration, and will begin another one
        self._earlier = EarlierIterations()
        loader._get_iterator = self._hand_out

    # --- the script's side -------------------------------------------------------------------------------------------

    def _hand_out(self) -> Iteration:
        if self._is_unclaimed and self._current is not None:
            self._is_unclaimed = False
            return self._current
        iteration = Iteration(self)
        self.begin(iteration)
        return iteration

    def begin(self, iteration: Iteration) -> None:
        """Begins a new epoch, in an iterator that is new, or whose workers live on."""
        if self._is_unclaimed and iteration is self._current:
            self._is_unclaimed = False
            return
        self._earlier.left(self._count, self._place())
        current = self._current
        if current is not None and current.has_begun and current.target is None and current.start is not None:
            self._earlier.keep(self._torch.describe(current, current.drawn), current.draws)
        self._count += 1
        self._is_left, self._first = False, []
        if iteration.start is not None and iteration.inner is not None and iteration.has_batches_ahead:
            self._require_order_of_workers(iteration)
        iteration.begin_as(self._count)
        self._current = iteration
        self._torch.begin(iteration)
        self._earlier.began(self._count, iteration.start)

    def give_first_again(self) -> None:
        """The batches of the epoch's beginning come first, before the one that is due."""
        self._given_again = deque(self._first)

    def draw(self, iteration: Iteration) -> Any:
        if self._given_again:
            return self._given_again.popleft()
        if not iteration.has_begun:
            self.begin(iteration)
        if iteration is not self._current and not iteration.has_ended:
            raise ConfigError(
                f"{self._name}: a batch was asked of an iterator after the loader had begun another one: only the "
                "newest has a position. Make a loader for each, and pass both to protect()"
            )
        if iteration.target is not None:
            self._reach(iteration, iteration.target)
        if iteration.replay:
            found = iteration.replay_next()
            if found is not None:
                return found[0]
            self._reach(iteration, iteration.target_of_changed())
        if iteration.ended or iteration.is_empty:
            iteration.ended = True
            raise StopIteration
        before = Generators.now()
        if iteration.drawn == 0:
            self._earlier.draws_first(iteration.number, before)
        if not iteration.ahead:
            return self._draw_next(iteration, before)
        then = iteration.ahead.popleft()
        with aside():
            if then is not None:
                Generators.decoded(then).restore()
            return self._draw_next(iteration, Generators.now(), was_ahead=True)

    def _draw_next(self, iteration: Iteration, before: Generators, *, was_ahead: bool = False) -> Any:
        data, draw = self._torch.draw(iteration, before, was_ahead=was_ahead)
        if draw.index < self.keeps_first:
            self._first.append(dict(data) if isinstance(data, UserDict) else data)
        needed = 0 if self._consumed is None and self.ahead is None else iteration.drawn + 2 - self._used(iteration)
        iteration.note(draw, needed=needed)
        return data

    def _reach(self, iteration: Iteration, target: Target) -> None:
        self._torch.reach(iteration, target)
        self._current, self._count = iteration, target.number
        self._earlier.reached(target.number, target.start)

    # --- the job's side ----------------------------------------------------------------------------------------------

    @property
    def place(self) -> tuple[int, int, bool]:
        return (self._count, *self._place())

    @property
    def is_at_end(self) -> bool:
        return self._place()[1]

    def leave(self) -> None:
        """A library is through with the epoch, though it may not have read it to its end."""
        iteration = self._current
        if iteration is not None and iteration.has_batches_ahead and self._loader.persistent_workers:
            self._require_order_of_workers(iteration)
        self._is_left = iteration is not None and iteration.has_begun

    def owns(self, iterator: object) -> bool:
        return self._current is not None and self._current.inner is iterator

    def held_generators(self) -> list[object]:
        return [*self._torch.order_held.generators(), *self._torch.data_held.generators()]

    def _place(self) -> tuple[int, bool]:
        iteration = self._current
        if iteration is None or not iteration.has_begun:
            return NOT_BEGUN, False
        if self._is_left:
            return iteration.drawn, True
        used = self._used(iteration)
        return used, iteration.has_ended and used == iteration.drawn and not self._enters_again

    def _used(self, iteration: Iteration) -> int:
        if self.ahead is not None:
            return iteration.drawn - self.ahead()
        return iteration.drawn if self._consumed is None else min(self._consumed(), iteration.drawn)

    def state_dict(self) -> dict[str, Any]:
        iteration = self._current
        used, ended = self._place()
        state: dict[str, Any] = {"mark": [self._here, self._count], "at": [used, ended], "first": list(self._first)}
        if iteration is None or used == NOT_BEGUN:
            return state | self._between_epochs() | {"start": None, "ahead": [], "workers": {}, "source": None}
        if ended:
            start = iteration.start.plain() if self._loader.persistent_workers else None
            return (
                state
                | self._between_epochs()
                | {"start": start, "ahead": [], "workers": iteration.workers, "source": None}
            )
        place = iteration.target or self._torch.describe(iteration, used)
        return state | {
            "start": place.start.plain(),
            "ahead": list(place.ahead),
            "workers": place.workers,
            "data": place.held,
            "order": None,
            "source": place.source,
        }

    def _between_epochs(self) -> dict[str, Any]:
        return {"data": self._torch.data_held.read_all(), "order": self._torch.order_held.read_all()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        (here, count), (used, ended) = state["mark"], state["at"]
        iteration, is_here = self._current, here == self._here
        is_anew = self._is_anew(is_here, count, (used, ended))
        if iteration is not None and iteration.has_begun and (is_anew or used == NOT_BEGUN):
            self._require_exact(is_here, count)
        began = self._count
        self._count, self._is_unclaimed, self._is_left = count, False, ended and self._enters_again
        if state["order"] is not None:
            self._torch.order_held.write_all(state["order"])
            self._torch.put_held(state["data"])
        elif is_here and began != count:
            self._write_as_before(count + 1)
        self._first = list(state["first"])
        self._given_again.clear()
        start = None if state["start"] is None else Start.of(state["start"])
        if used == NOT_BEGUN:
            self._wait(None, {})
        elif is_anew:
            self._wait(start, state["workers"])
        elif ended:
            self._stand_at_end(start, state["workers"], used, is_same=is_here and began == count)
        else:
            assert start is not None
            target = Target(count, used, start, state["workers"], state["data"], list(state["ahead"]), state["source"])
            self._go_to(target, began if is_here else None)

    def _wait(self, start: Start | None, workers: dict[int, bytes]) -> None:
        """The script will ask for the first batch of an iterator that it has made, or for another iterator."""
        if self._current is not None:
            self._current.wait_to_begin(start, workers)

    def _stand_at_end(self, start: Start | None, workers: dict[int, bytes], used: int, *, is_same: bool) -> None:
        if self._current is None and self._loader.persistent_workers:
            self._current = self._loader._iterator = Iteration(self)
        if self._current is not None:
            self._current.stand_at_end(self._count, start, workers, used, keeps_inner=is_same)

    def _go_to(self, target: Target, began: int | None) -> None:
        """`began`: the iteration that this process has begun last; None: it is another process than the one whose
        place this is."""
        iteration, number = self._current, target.number
        if iteration is None:
            iteration = self._current = Iteration(self)
            self._is_unclaimed = True
        self._is_unclaimed |= self._enters_again
        if began == number and (kept := iteration.draws_since(target.drawn)) is not None:
            iteration.go_back(target, kept)
            return
        if began == number + 1 and (older := self._earlier.kept_since(target)) is not None:
            iteration.go_back_to_older(target, *older)
            return
        iteration.stand_at(target)

    def _write_as_before(self, number: int) -> None:
        """The next iteration had begun, and begins again with what samplers and data held then."""
        if (later := self._earlier.start_of(number)) is not None:
            self._torch.order_held.write_all(later.again_with if later.again_with is not None else later.made_with)
            self._torch.data_held.write_all(later.data)

    def _require_order_of_workers(self, iteration: Iteration) -> None:
        if iteration.workers:
            raise ConfigError(
                f"{self._name}: an epoch was left before its end, and its persistent workers, which draw random "
                "numbers, have made batches ahead that nobody has seen: where they are now is not known. Leave out "
                "persistent_workers, or read each epoch to its end"
            )

    def _is_anew(self, is_here: bool, count: int, at: tuple[int, bool]) -> bool:
        """Whether the script has made an iterator since, and has not used the one before it since. Then it will use the
        new one, or make another."""
        if not is_here or count == self._count or self._enters_again:
            return False
        return self._earlier.was_left_at(count, at)

    def _require_exact(self, is_here: bool, count: int) -> None:
        if not self._earlier.begins_alike(range(count + 1 if is_here else 1, self._count + 1)):
            raise NotInPlace(
                f"{self._name}: the step that is redone began an iterator, and random numbers were drawn before its "
                "first batch, or no batch was taken from it: only a fresh process can begin it at the same place"
            )
