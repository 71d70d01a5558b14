"""Makes torch's iterators of a loader: one that begins an epoch, and one that stands at a place in an epoch.

Torch's iterators have no position. One at a place is begun as that of the epoch was, with what generators, samplers and
data held then, and is brought to the place:

    a dataset with indices   the indices before the place are passed over
    workers                  are put where their generators were (workers.py)
    what data holds          is put back after a first sample was read (`_read_before_values`)
    a stream                 loads its own state; if it has none, all is drawn again from the first sample (stream.py)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from torch.utils.data import IterableDataset, IterDataPipe

from deadpool.errors import ConfigError
from deadpool.snapshot.data.generators import Generators, aside
from deadpool.snapshot.data.held_values import HeldValues, read_unnoted
from deadpool.snapshot.data.iteration import Iteration, Target
from deadpool.snapshot.data.kept_batches import Draw, Draws, KeptBatch
from deadpool.snapshot.data.order import DrawOrder, Start
from deadpool.snapshot.data.stream import Stream, says_where_it_is
from deadpool.snapshot.data.workers import Made, ToState, WorkerStart


class TorchIterators:
    def __init__(self, name: str, loader: Any) -> None:
        _require_order(name, loader)
        self._name, self._loader = name, loader
        self._has_indices = not isinstance(loader.dataset, IterableDataset)
        self._stream = Stream(name, loader)
        self.order_held = HeldValues(
            lambda: {"sampler": loader.sampler, "batches": loader.batch_sampler, "generator": loader.generator},
            but=lambda: (loader.dataset,),
        )
        self.data_held = HeldValues(lambda: {"dataset": loader.dataset, "collate_fn": loader.collate_fn})
        self._has_read = False  # a sample, in this process
        self._is_put_unread = False
        self._require_no_iterators(self._held_iterators())

    def _held_iterators(self) -> dict[str, object]:
        """Workers that end with their epoch have copies of the dataset, which begin anew."""
        loader = self._loader
        in_data = {} if says_where_it_is(loader.dataset) else self.data_held.iterators
        return {
            **self.order_held.iterators,
            **({} if loader.num_workers and not loader.persistent_workers else in_data),
        }

    def _require_no_iterators(self, found: Mapping[str, object]) -> None:
        for path, each in found.items():
            raise ConfigError(
                f"{self._name}: {path} is an iterator ({type(each).__name__}) that epochs go on with where the one "
                "before has left it, and no other process could be put there: make it in __iter__, or give the dataset "
                "state_dict() and load_state_dict()"
            )

    def _require_fresh_iterators(self, iteration: Iteration) -> None:
        """The first batch of an epoch is made: iterators that were held when it began have been replaced."""
        self.order_held.look()
        self.data_held.look()
        earlier = {id(each) for each in iteration.iterators}
        self._require_no_iterators({path: each for path, each in self._held_iterators().items() if id(each) in earlier})

    # --- an epoch begins ---------------------------------------------------------------------------------------------

    def begin(self, iteration: Iteration) -> None:
        """Makes an iterator for a new epoch, or lets that of the epoch before begin again, with its workers."""
        before = iteration.start
        if before is not None and self._loader.persistent_workers:
            self._begin_with_same_workers(iteration, before)
            return
        start = Start(made=Generators.now().encoded(), made_with=self.order_held.read_all())
        start.data = self.data_held.read_all()
        iteration.start, iteration.workers = start, {}
        iteration.iterators = list(self._held_iterators().values())
        self._make(iteration, DrawOrder(self._name, self._sampler, start, self.order_held.states_of_generators))

    def _begin_with_same_workers(self, iteration: Iteration, before: Start) -> None:
        start = Start(before.made, before.made_with, Generators.now().encoded(), self.order_held.read_all())
        start.data, start.workers = self.data_held.read_all(), iteration.workers
        iteration.start = start
        iteration.iterators = list(self._held_iterators().values())
        if iteration.inner is not None:
            iteration.order.begin_naturally(start)
            iteration.inner._reset(self._loader)
        else:  # they are gone: others are made, as those were
            self._make_as_it_was(iteration, start)

    # --- a batch is drawn --------------------------------------------------------------------------------------------

    def draw(self, iteration: Iteration, before: Generators, *, was_ahead: bool) -> tuple[Any, Draw]:
        """Draws the next batch, which may be ahead of its step, and notes all that it depends on."""
        held, source = self._held_by_data(), self._state_of_stream(iteration)
        data = iteration.take()
        self._has_read = True
        if iteration.drawn == 0 and iteration.iterators:
            self._require_fresh_iterators(iteration)
        if iteration.was_loaded:
            iteration.was_loaded = False
            self._stream.forget_loaded_state()
        after = Generators.now()
        has_drawn = before != after
        workers = iteration.workers
        if isinstance(data, Made):
            if data.state is not None:
                iteration.workers = {**workers, data.worker: data.state}
            data = data.batch
        return data, Draw(
            index=iteration.drawn,
            kept=KeptBatch(data),
            before=before if has_drawn else None,
            after=after if has_drawn and not was_ahead else None,
            workers=workers,
            held=held,
            source=source,
        )

    def _held_by_data(self) -> dict[str, bytes]:
        """Workers have dataset and collator of their own."""
        return {} if self._loader.num_workers else self.data_held.read()

    def _state_of_stream(self, iteration: Iteration) -> list[Any] | None:
        return self._stream.state(iteration) if self._reads_stream else None

    # --- a place in an epoch -----------------------------------------------------------------------------------------

    def describe(self, iteration: Iteration, used: int) -> Target:
        """Describes the iteration as it stood behind so many batches: it may have given more, or give some again."""
        if iteration.replay and iteration.fallback is not None and used == iteration.fallback.drawn:
            return iteration.fallback  # no step has used a batch since it was put there
        draw = next((each for each in iteration.replay if each.index == used), None) or iteration.draws.at(used)
        if draw is None:
            assert used == iteration.drawn, "the batches that were drawn ahead are kept"
            if iteration.is_empty and iteration.end is not None:
                return iteration.end
            workers, held, source = iteration.workers, self._held_by_data(), self._state_of_stream(iteration)
            return Target(iteration.number, used, iteration.start, workers, held, [], source)
        drawn = [each for each in iteration.draws.since(used) or [] if each.index < iteration.drawn]
        ahead = [None if each.before is None else each.before.encoded() for each in drawn]
        return Target(iteration.number, used, iteration.start, draw.workers, draw.held, ahead, draw.source)

    def reach(self, iteration: Iteration, target: Target) -> None:
        """Brings the iteration to the place of the target, with another iterator of torch's."""
        iteration.leave_inner()
        iteration.number, iteration.drawn, iteration.ended = target.number, target.drawn, False
        iteration.replay.clear()
        iteration.is_empty = False
        iteration.draws = Draws(target.drawn)
        iteration.start, iteration.workers = target.start, dict(target.workers)
        with aside():
            self.put_held(target.start.data)
            if target.source is not None:
                self._load_stream(iteration, target)
            else:
                self._draw_up_to(iteration, target)
                if not self._loader.num_workers:
                    self.data_held.write(target.held)
        iteration.ahead = deque(target.ahead)
        iteration.target = None

    def put_held(self, values: Mapping[str, bytes]) -> None:
        self._is_put_unread = self._has_indices and not self._has_read
        self.data_held.write_all(values)

    def _load_stream(self, iteration: Iteration, target: Target) -> None:
        """The dataset may hold what it has loaded in an attribute until its first sample, so nothing is written to
        attributes afterwards."""
        has_ended, state = target.source
        self.data_held.write(target.held)
        self._stream.load(state)
        self._make_as_it_was(iteration, target.start)
        iteration.inner._dataset_fetcher.ended = has_ended
        iteration.was_loaded = True

    def _draw_up_to(self, iteration: Iteration, target: Target) -> None:
        if self._has_indices:
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

    # --- making them -------------------------------------------------------------------------------------------------

    def _make_as_it_was(self, iteration: Iteration, start: Start, skip: int = 0, *, keeps: bool = False) -> None:
        """Makes an iterator that stands where `start` and `skip` say. The generators go on from there: callers put
        them back, unless this epoch begins now. `keeps`: where workers are is that of the place, not of the start."""
        workers = self._loader.num_workers

        def begin_order(times: int) -> None:
            if start.again is not None and times == 2:
                Generators.decoded(start.again).restore()
                self.order_held.write_all(start.again_with or {})

        order = DrawOrder(self._name, self._sampler, start, self.order_held.states_of_generators, begin_order)
        order.goes_back = True
        states = iteration.workers if keeps else start.workers
        if self._has_indices:
            order.skip = skip
        if states:
            order.first.extend(ToState(states.get(worker)) for worker in range(workers))
        if workers and self._has_indices:
            order.first.extend(ToState() for _ in range(skip % workers))
        commands = len(order.first)
        self.order_held.write_all(start.made_with)
        Generators.decoded(start.made).restore()
        self._make(iteration, order)
        for _ in range(commands):
            answer = next(iteration.inner)
            assert isinstance(answer, ToState), "a worker has taken a command for indices"
        if not workers and order.newest is not None:
            order.newest.skip_to(order.skip)
        order.goes_back = False

    def _make(self, iteration: Iteration, order: DrawOrder) -> None:
        loader = self._loader
        name, sampler, own = self._sampler_name, self._sampler, loader.worker_init_fn
        vars(loader)[name] = order  # a loader refuses that one sets it
        loader.worker_init_fn = WorkerStart(own)
        try:
            iteration.order, iteration.inner = order, type(loader)._get_iterator(loader)
        finally:
            vars(loader)[name], loader.worker_init_fn = sampler, own
        if not loader.num_workers and order.newest is not None:
            order.newest.note_own()  # torch has drawn a seed
        if self._reads_stream:
            self._stream.watch(iteration)
        if self._is_put_unread and not loader.num_workers:
            self._read_before_values(iteration.inner._dataset_fetcher)

    def _read_before_values(self, fetcher: Any) -> None:
        """A dataset may make at its first sample what it reads from, and note that it has (`self.is_cached = True`).
        The note came from another process, and would be wrong here: so the first sample is read without what was put
        back, for nothing, and then again."""
        read = fetcher.fetch

        def fetch(indices: Any) -> Any:
            fetcher.fetch, self._is_put_unread = read, False
            read_unnoted(self.data_held, lambda: read(indices))
            return read(indices)

        fetcher.fetch = fetch

    @property
    def _reads_stream(self) -> bool:
        """The dataset has no indices, and this process reads it itself."""
        return not self._has_indices and not self._loader.num_workers

    @property
    def _sampler_name(self) -> str:
        return "sampler" if self._loader.batch_sampler is None else "batch_sampler"

    @property
    def _sampler(self) -> Any:
        found = getattr(self._loader, self._sampler_name)
        return found.sampler if isinstance(found, DrawOrder) else found


def _require_order(name: str, loader: Any) -> None:
    if loader.num_workers and not loader.in_order:
        raise ConfigError(
            f"{name}: in_order=False cannot be used, because batches would come in another order each time"
        )
    if isinstance(loader.dataset, IterDataPipe):
        raise ConfigError(f"{name}: a dataset of datapipes cannot be used: use a Dataset or an IterableDataset")
