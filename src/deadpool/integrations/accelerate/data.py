"""The batches of loaders that Accelerate has made: where they stand, and how a loop is given them again.

A loop enters an epoch in the middle by a new loader that skips batches. Where the position of its loader is known, it
is given that loader instead, which goes on where the step that is redone begins (snapshot/data). Trainer's loop does
so by itself (integrations/transformers); a loop of one's own draws from `endless`.

Accelerate reads one batch ahead. Where it reads on the first rank and sends the others their parts, each step draws a
batch for every rank there; and it completes the last batch of an epoch with rows of the first one, which is therefore
part of every version of that rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard, skip_first_batches
from torch.utils.data import DataLoader

from deadpool.integrations.accelerate.refusals import AccelerateRefusal
from deadpool.integrations.refusals import Refused
from deadpool.snapshot.data.position import DataPosition

_NAME = "the training data"


def require_supported_loader(loader: Any) -> None:
    if type(loader) not in (DataLoaderShard, DataLoaderDispatcher):
        raise Refused(
            AccelerateRefusal.OTHER_LOADER,
            f"{_NAME}: a {type(loader).__name__} cannot be protected: use a loader that Accelerate made",
        )
    if type(loader.base_dataloader) is not DataLoader:
        raise Refused(
            AccelerateRefusal.STATEFUL_LOADER,
            f"{_NAME}: a {type(loader.base_dataloader).__name__} cannot be protected with Accelerate: leave out "
            "use_stateful_dataloader, the position of the plain loader is known",
        )


class AcceleratedData:
    """`consumed` tells how many batches of the epoch the updates have used. `loader` is that of all epochs; the first
    one of a training that goes on from a checkpoint has another, which skips what was trained on before."""

    def __init__(self, loader: Any, consumed: Callable[[], int]) -> None:
        self._loader, self._consumed = loader, consumed
        self._is_dispatched = type(loader) is DataLoaderDispatcher
        self._per_step = loader.state.num_processes if self._is_dispatched and not loader.split_batches else 1
        self._main = self._position(loader, 0)
        self._skipping: tuple[int, Any, DataPosition] | None = None
        self._resumed: tuple[int, Any, DataPosition] | None = None  # the same, kept: a rank may return to that epoch
        if self._is_dispatched and not loader._drop_last:
            self._main.keeps_first = self._per_step

    def _position(self, loader: Any, skipped: int) -> DataPosition:
        def consumed() -> int:
            return self._per_step * max(0, self._consumed() - skipped)

        return DataPosition(_NAME, loader.base_dataloader, consumed=consumed, enters_again=True)

    def leave_epoch(self) -> None:
        self._main.leave()
        self._skipping = None
        self._loader.skip_batches = 0

    def skip(self, original: Callable[..., Any], loader: Any, count: int, *, is_again: bool) -> Any:
        """Stands in for Accelerate's skip_first_batches."""
        if loader is not self._loader:
            return original(loader, count)
        if is_again and self._skipping is None:
            is_completed = self._is_dispatched and not loader._drop_last and count > 0
            loader.skip_batches = 1 if is_completed else 0
            if is_completed:
                self._main.give_first_again()
            return loader
        if self._skipping is None:
            self._begin_skipping(original, count)
        assert self._skipping is not None
        return self._skipping[1]

    def _begin_skipping(self, original: Callable[..., Any], count: int) -> None:
        made = original(self._loader, count)
        if self._is_dispatched or made.skip_batches:
            raise Refused(
                AccelerateRefusal.RESUMED_IN_A_STREAM,
                f"{_NAME}: a training that goes on from a checkpoint in the middle of an epoch cannot be protected "
                "where it reads an IterableDataset: let the checkpoint be of the end of an epoch, or begin without it",
            )
        self._skipping = self._resumed = count, made, self._position(made, count)

    def state_dict(self) -> dict[str, Any]:
        skipping = self._skipping
        return {
            "main": self._main.state_dict(),
            "skipped": None if skipping is None else skipping[0],
            "skipping": None if skipping is None else skipping[2].state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["skipped"] is None:
            self._skipping = None
        elif self._skipping is None and self._resumed is not None:
            self._skipping = self._resumed
        elif self._skipping is None:
            self._begin_skipping(skip_first_batches, state["skipped"])
        self._main.load_state_dict(state["main"])
        if self._skipping is not None:
            self._skipping[2].load_state_dict(state["skipping"])


class Endless(Iterator[Any]):
    """The batches of a loader for a loop of one's own, epoch after epoch. `used` counts those of the epoch that steps
    have used."""

    def __init__(self, loader: Any) -> None:
        require_supported_loader(loader)
        self.epoch = self.used = 0
        self._loader, self._data = loader, AcceleratedData(loader, lambda: self.used)
        self._batches: Iterator[Any] | None = None
        self._entered_at = 0  # what Accelerate counted when its loader was entered
        self._is_again = False  # the epoch is entered at the step that is redone

    def __next__(self) -> Any:
        if self._batches is None:
            self._batches = iter(self._enter())
        for batch in self._batches:
            self.used += 1
            return batch
        if self.used == 0:
            raise Refused(AccelerateRefusal.EMPTY_EPOCH, f"{_NAME}: an epoch of this loader has no batch for this rank")
        self._leave_epoch()
        return next(self)

    def _enter(self) -> Any:
        is_again, self._is_again, self._entered_at = self._is_again, False, self._loader.iteration
        return self._data.skip(skip_first_batches, self._loader, self.used, is_again=True) if is_again else self._loader

    def _leave_epoch(self) -> None:
        """Accelerate counts an epoch when it is asked for more than there is. One that was entered again behind its
        last batch gave nothing, and is counted here."""
        if self._loader.iteration == self._entered_at:
            self._loader.iteration += 1
        self._data.leave_epoch()
        self.epoch, self.used, self._batches = self.epoch + 1, 0, None

    def state_dict(self) -> dict[str, Any]:
        counts = {"epoch": self.epoch, "used": self.used, "iteration": self._loader.iteration}
        return {"data": self._data.state_dict(), **counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._batches, self._is_again = None, True
        self.epoch, self.used, self._loader.iteration = state["epoch"], state["used"], state["iteration"]
        self._loader.gradient_state.dataloader_references = [None]  # of iterations that the fault has cut off
        self._data.load_state_dict(state["data"])
