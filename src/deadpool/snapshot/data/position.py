"""Captures and restores the position of torch's DataLoader, whose iterators have none themselves.

The script gets an iterator of ours around torch's. A rank that returns to an earlier step keeps torch's iterator with
its workers, and is given the batches that it has drawn since once more. A process that was not there makes an iterator
and brings it to the same place:

    a dataset with indices   the order is begun where it was begun, and the indices before the place are passed over
    workers                  are put where their generators were (workers.py)
    an IterableDataset       has a state_dict(): that; if not, all is drawn again from the first sample of the epoch

Generators of the process are put where they were for it, and back. Batches that were drawn ahead of their step, as
libraries do, are drawn again with the generators of that time.
"""

from __future__ import annotations

import secrets
from collections import UserDict, deque
from collections.abc import Callable
from typing import Any

from torch.utils.data import IterableDataset, IterDataPipe

from deadpool.errors import ConfigError, NotInPlace
from deadpool.snapshot.data.generators import Generators, aside
from deadpool.snapshot.data.held_values import HeldValues
from deadpool.snapshot.data.iteration import Iteration, Target
from deadpool.snapshot.data.kept_batches import Draw, Draws, KeptBatch
from deadpool.snapshot.data.order import Order, Start
from deadpool.snapshot.data.workers import Made, ToState, WorkerStart

_REMEMBERED = 64
NOT_BEGUN = -1


class DataPosition:
    """`consumed` tells how many batches of the iteration the steps have used, where a library draws ahead of them.
    With `enters_again`, iter() is called again after each fault, and then gives the iteration that is under way."""

    def __init__(
        self, name: str, loader: Any, *, consumed: Callable[[], int] | None = None, enters_again: bool = False
    ) -> None:
        _require_order(name, loader)
        self._name, self._loader = name, loader
        self._consumed, self._enters_again = consumed, enters_again
        self.ahead: Callable[[], int] | None = None  # instead: how many of the batches no step has used
        self._here = secrets.token_hex(8)
        self._is_stream = isinstance(loader.dataset, IterableDataset)
        self._order_held = HeldValues(
            lambda: {"sampler": loader.sampler, "batches": loader.batch_sampler, "generator": loader.generator},
            but=lambda: (loader.dataset,),
        )
        self._data_held = HeldValues(lambda: {"dataset": loader.dataset, "collate_fn": loader.collate_fn})
        self._count = 0
        self._current: Iteration | None = None
        self._is_unclaimed = False  # the next iter() gives the current iteration
        self.keeps_first = 0  # how many batches of an epoch's beginning its end is made with
        self._first: list[Any] = []
        self._given_again: deque[Any] = deque()
        self._is_left = False  # a library is through with the current iteration, and will begin another one
        self._left_at: dict[int, tuple[int, bool]] = {}  # of an iteration, when the next one began
        self._drew: dict[int, Generators | None] = {}  # after iter(); None: they were the same at the first batch
        self._starts: dict[int, Start] = {}
        self._before_current: tuple[Target, Draws] | None = None  # the end of the iteration before, and its draws
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
        self._left_at[self._count] = self._place()
        current = self._current
        if current is not None and current.has_begun and current.target is None and current.start is not None:
            self._before_current = self._describe(current, current.drawn), current.draws
        self._count += 1
        self._is_left, self._first = False, []
        before = iteration.start
        if before is not None and iteration.inner is not None and not iteration.ended:
            self._require_order_of_workers(iteration)
        iteration.begin_as(self._count)
        self._current = iteration
        self._order_held.look()
        self._data_held.look()
        if before is not None and self._loader.persistent_workers:
            self._begin_with_same_workers(iteration, before)
        else:
            start = Start(made=Generators.now().encoded(), made_with=self._order_held.read())
            start.data = self._data_held.read()
            iteration.start, iteration.workers = start, {}
            self._make(iteration, Order(self._name, self._sampler, start))
        self._starts[self._count] = iteration.start
        self._drew[self._count] = Generators.now()
        for notes in (self._left_at, self._drew, self._starts):
            notes.pop(self._count - _REMEMBERED, None)

    def _begin_with_same_workers(self, iteration: Iteration, before: Start) -> None:
        start = Start(before.made, before.made_with, Generators.now().encoded(), self._order_held.read())
        start.data, start.workers = self._data_held.read(), iteration.workers
        iteration.start = start
        if iteration.inner is not None:
            iteration.order.begin_naturally(start)
            iteration.inner._reset(self._loader)
        else:  # they are gone: others are made, as those were
            self._make_as_it_was(iteration, start)

    def give_first_again(self) -> None:
        """The batches of the epoch's beginning come first, before the one that is due."""
        self._given_again = deque(self._first)

    def draw(self, iteration: Iteration) -> Any:
        if self._given_again:
            return self._given_again.popleft()
        if not iteration.has_begun:
            self.begin(iteration)
        if iteration.target is not None:
            self._reach(iteration, iteration.target)
        if iteration.replay:
            found = iteration.replay_next()
            if found is not None:
                return found[0]
            self._reach(iteration, self._target_after(iteration))
        if iteration.ended or iteration.is_empty:
            iteration.ended = True
            raise StopIteration
        before = Generators.now()
        if iteration.drawn == 0 and self._drew.get(iteration.number) == before:
            self._drew[iteration.number] = None
        if not iteration.ahead:
            return self._draw_next(iteration, before)
        then = iteration.ahead.popleft()
        with aside():
            if then is not None:
                Generators.decoded(then).restore()
            return self._draw_next(iteration, Generators.now(), was_ahead=True)

    def _draw_next(self, iteration: Iteration, before: Generators, *, was_ahead: bool = False) -> Any:
        held = self._held_by_data()
        source = self._state_of_source()
        data = iteration.take()
        if iteration.was_loaded:
            iteration.was_loaded = False
            forget_loaded_state(self._loader.dataset)
        after = Generators.now()
        has_drawn = before != after
        workers = iteration.workers
        if isinstance(data, Made):
            if data.state is not None:
                iteration.workers = {**workers, data.worker: data.state}
            data = data.batch
        if iteration.drawn < self.keeps_first:
            self._first.append(dict(data) if isinstance(data, UserDict) else data)
        iteration.note(
            Draw(
                index=iteration.drawn,
                kept=KeptBatch(data),
                before=before if has_drawn else None,
                after=after if has_drawn and not was_ahead else None,
                workers=workers,
                held=held,
                source=source,
            ),
            needed=0 if self._consumed is None and self.ahead is None else iteration.drawn + 2 - self._used(iteration),
        )
        return data

    # --- torch's iterators -------------------------------------------------------------------------------------------

    @property
    def _sampler_name(self) -> str:
        return "sampler" if self._loader.batch_sampler is None else "batch_sampler"

    @property
    def _sampler(self) -> Any:
        found = getattr(self._loader, self._sampler_name)
        return found.sampler if isinstance(found, Order) else found

    def _make(self, iteration: Iteration, order: Order) -> None:
        loader = self._loader
        name, sampler, own = self._sampler_name, self._sampler, loader.worker_init_fn
        vars(loader)[name] = order  # a loader refuses that one sets it
        loader.worker_init_fn = WorkerStart(own)
        try:
            iteration.order, iteration.inner = order, type(loader)._get_iterator(loader)
        finally:
            vars(loader)[name], loader.worker_init_fn = sampler, own
        if self._is_stream and not loader.num_workers:
            self._watch_stream(iteration)

    def _watch_stream(self, iteration: Iteration) -> None:
        """Notes which batches use the generators of the process before they are collated."""
        fetcher = iteration.inner._dataset_fetcher
        collate, what = fetcher.collate_fn, f"{self._name}: the dataset ({type(self._loader.dataset).__name__})"

        def collate_and_note(data: Any) -> Any:
            if iteration.passes_over:
                return None
            if iteration.before is not None and iteration.before != Generators.now():
                iteration.start.note(what, iteration.drawn, iteration.before)
            return collate(data)

        fetcher.collate_fn = collate_and_note

    def _make_as_it_was(self, iteration: Iteration, start: Start, skip: int = 0, *, keeps: bool = False) -> None:
        """Makes an iterator that stands where `start` and `skip` say. The generators go on from there: callers put
        them back, unless this epoch begins now. `keeps`: where workers are is that of the place, not of the start."""
        workers = self._loader.num_workers

        def begin_order(times: int) -> None:
            if start.again is not None and times == 2:
                Generators.decoded(start.again).restore()
                self._order_held.write(start.again_with or {})

        order = Order(self._name, self._sampler, start, begin_order)
        order.goes_back = True
        states = iteration.workers if keeps else start.workers
        if not self._is_stream:
            order.skip = skip
        if states:
            order.first.extend(ToState(states.get(worker)) for worker in range(workers))
        if workers and not self._is_stream:
            order.first.extend(ToState() for _ in range(skip % workers))
        commands = len(order.first)
        self._order_held.write(start.made_with)
        Generators.decoded(start.made).restore()
        self._make(iteration, order)
        for _ in range(commands):
            answer = next(iteration.inner)
            assert isinstance(answer, ToState), "a worker has taken a command for indices"
        if not workers and order.newest is not None:
            order.newest.skip_to(order.skip)
        order.goes_back = False

    def _reach(self, iteration: Iteration, target: Target) -> None:
        """Brings the iteration to the place of the target, with another iterator of torch's."""
        iteration.leave_inner()
        iteration.number, iteration.drawn, iteration.ended = target.number, target.drawn, False
        iteration.replay.clear()
        iteration.is_empty = False
        iteration.draws = Draws(target.drawn)
        iteration.start, iteration.workers = target.start, dict(target.workers)
        with aside():
            self._data_held.write(target.start.data)
            if target.source is not None:
                self._load_source(iteration, target)
            else:
                self._draw_up_to(iteration, target)
                if not self._loader.num_workers:
                    self._data_held.write(target.held)
        iteration.ahead = deque(target.ahead)
        iteration.target = None
        self._current, self._count = iteration, target.number
        self._starts[target.number] = target.start

    def _load_source(self, iteration: Iteration, target: Target) -> None:
        """The dataset may hold what it has loaded in an attribute until its first sample, so nothing is written to
        attributes afterwards."""
        has_ended, state = target.source
        self._data_held.write(target.held)
        self._loader.dataset.load_state_dict(state)
        self._make_as_it_was(iteration, target.start)
        iteration.inner._dataset_fetcher.ended = has_ended
        iteration.was_loaded = True

    def _draw_up_to(self, iteration: Iteration, target: Target) -> None:
        if not self._is_stream:
            self._make_as_it_was(iteration, target.start, target.drawn, keeps=True)
            return
        self._make_as_it_was(iteration, target.start)
        iteration.passes_over = True
        try:
            for index in range(target.drawn):
                if index in target.start.notes:
                    Generators.decoded(target.start.notes[index]).restore()
                next(iteration.inner)
        finally:
            iteration.passes_over = False

    def _target_after(self, iteration: Iteration) -> Target:
        """Returns where the iteration stands among batches that are given again, if the next one was changed."""
        draw, found = iteration.replay[0], iteration.fallback
        assert found is not None
        ahead = found.ahead[draw.index - found.drawn :]
        return Target(found.number, draw.index, iteration.start, draw.workers, draw.held, ahead, draw.source)

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
        if iteration is not None and not iteration.has_ended and self._loader.persistent_workers:
            self._require_order_of_workers(iteration)
        self._is_left = iteration is not None and iteration.has_begun

    def owns(self, iterator: object) -> bool:
        return self._current is not None and self._current.inner is iterator

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
        over: dict[str, Any] = {"data": self._data_held.read(), "order": self._order_held.read()}
        if iteration is None or used == NOT_BEGUN:
            return state | over | {"start": None, "ahead": [], "workers": {}, "source": None}
        if ended:
            start = iteration.start.plain() if self._loader.persistent_workers else None
            return state | over | {"start": start, "ahead": [], "workers": iteration.workers, "source": None}
        place = iteration.target or self._describe(iteration, used)
        return state | {
            "start": place.start.plain(),
            "ahead": list(place.ahead),
            "workers": place.workers,
            "data": place.held,
            "order": None,
            "source": place.source,
        }

    def _describe(self, iteration: Iteration, used: int) -> Target:
        """Describes the iteration as it stood behind so many batches: it may have given more, or give some again."""
        if iteration.replay and iteration.fallback is not None and used == iteration.fallback.drawn:
            return iteration.fallback  # no step has used a batch since it was put there
        draw = next((each for each in iteration.replay if each.index == used), None) or iteration.draws.at(used)
        if draw is None:
            assert used == iteration.drawn, "the batches that were drawn ahead are kept"
            if iteration.is_empty and iteration.end is not None:
                return iteration.end
            workers, held, source = iteration.workers, self._held_by_data(), self._state_of_source()
            return Target(iteration.number, used, iteration.start, workers, held, [], source)
        drawn = [each for each in iteration.draws.since(used) or [] if each.index < iteration.drawn]
        ahead = [None if each.before is None else each.before.encoded() for each in drawn]
        return Target(iteration.number, used, iteration.start, draw.workers, draw.held, ahead, draw.source)

    def _held_by_data(self) -> dict[str, bytes]:
        """Workers have dataset and collator of their own."""
        return {} if self._loader.num_workers else self._data_held.read()

    def _state_of_source(self) -> list[Any] | None:
        """Returns the dataset's own state, where it has one, and whether it was read to its end: what
        it says then may be its beginning."""
        dataset, iteration = self._loader.dataset, self._current
        if not self._is_stream or self._loader.num_workers or iteration is None or iteration.inner is None:
            return None
        if not _says_where_it_is(dataset):
            return None
        return [iteration.inner._dataset_fetcher.ended, dataset.state_dict()]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        (here, count), (used, ended) = state["mark"], state["at"]
        iteration, is_here = self._current, here == self._here
        is_anew = self._is_anew(is_here, count, (used, ended))
        if iteration is not None and iteration.has_begun and (is_anew or used == NOT_BEGUN):
            self._require_exact(is_here, count)
        began = self._count
        self._count, self._is_unclaimed, self._is_left = count, False, ended and self._enters_again
        if state["order"] is not None:
            self._order_held.write(state["order"])
            self._data_held.write(state["data"])
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
        if began == number + 1 and self._before_current is not None and self._before_current[0].number == number:
            end, draws = self._before_current
            if (kept := draws.since(target.drawn)) is not None:
                iteration.go_back_to_older(target, kept, draws, end)
                return
        iteration.stand_at(target)

    def _write_as_before(self, number: int) -> None:
        """The next iteration had begun, and begins again with what samplers and data held then."""
        if (later := self._starts.get(number)) is not None:
            self._order_held.write(later.again_with if later.again_with is not None else later.made_with)
            self._data_held.write(later.data)

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
        return self._left_at.get(count) == tuple(at)

    def _require_exact(self, is_here: bool, count: int) -> None:
        if any(self._drew.get(number) is not None for number in range(count + 1 if is_here else 1, self._count + 1)):
            raise NotInPlace(
                f"{self._name}: the step that is redone began an iterator, and random numbers were drawn before its "
                "first batch, or no batch was taken from it: only a fresh process can begin it at the same place"
            )


def _require_order(name: str, loader: Any) -> None:
    if loader.num_workers and not loader.in_order:
        raise ConfigError(
            f"{name}: in_order=False cannot be used, because batches would come in another order each time"
        )
    if isinstance(loader.dataset, IterDataPipe):
        raise ConfigError(f"{name}: a dataset of datapipes cannot be used: use a Dataset or an IterableDataset")


def _says_where_it_is(dataset: Any) -> bool:
    """A shuffled stream of Hugging Face's datasets does not: it drops what it has in its buffer when its state is
    loaded."""
    if not (hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")):
        return False
    seen, waiting = set[int](), [getattr(dataset, "_ex_iterable", None)]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if "Shuffled" in type(each).__name__:
            return False
        waiting += [getattr(each, "ex_iterable", None), *(getattr(each, "ex_iterables", None) or [])]
    return True


def forget_loaded_state(dataset: Any) -> None:
    """Hugging Face's datasets begin every later epoch of the same number at a state that was loaded."""
    if getattr(dataset, "_starting_state_dict", None) is not None:
        dataset._starting_state_dict = None
