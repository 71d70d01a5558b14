"""A dataset without indices that this process reads itself: how it is brought to a place.

If it has a state of its own, that is kept with every batch, and loaded. If not, all is drawn again from the first
sample of the epoch, so those batches are noted that use the generators of the process.
"""

from __future__ import annotations

from typing import Any

from deadpool.snapshot.data.generators import Generators
from deadpool.snapshot.data.iteration import Iteration


class Stream:
    def __init__(self, name: str, loader: Any) -> None:
        self._name, self._loader = name, loader

    @property
    def _dataset(self) -> Any:
        return self._loader.dataset

    def state(self, iteration: Iteration) -> list[Any] | None:
        """Returns the dataset's own state, where it has one, and whether it was read to its end: what it says then may
        be its beginning."""
        if iteration.inner is None or not says_where_it_is(self._dataset):
            return None
        return [iteration.inner._dataset_fetcher.ended, self._dataset.state_dict()]

    def load(self, state: Any) -> None:
        self._dataset.load_state_dict(state)

    def watch(self, iteration: Iteration) -> None:
        """Notes which batches use the generators of the process before they are collated."""
        fetcher = iteration.inner._dataset_fetcher
        collate, what = fetcher.collate_fn, f"{self._name}: the dataset ({type(self._dataset).__name__})"

        def collate_and_note(data: Any) -> Any:
            if iteration.passes_over:
                return None
            if iteration.before is not None and iteration.before != Generators.now():
                iteration.start.note(what, iteration.drawn, iteration.before)
            return collate(data)

        fetcher.collate_fn = collate_and_note

    def forget_loaded_state(self) -> None:
        """Hugging Face's datasets begin every later epoch of the same number at a state that was loaded."""
        dataset = self._dataset
        if getattr(dataset, "_starting_state_dict", None) is not None:
            dataset._starting_state_dict = None


def says_where_it_is(dataset: Any) -> bool:
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
