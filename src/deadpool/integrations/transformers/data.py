"""The batches of Trainer: where its loaders stand, and how its loop is given them again.

Trainer enters an epoch in the middle by a new loader that skips batches. Where the position of its loader is known,
it is given that loader instead, which goes on where the step that is redone begins (snapshot/data).

Accelerate reads one batch ahead. Where it reads on the first rank and sends the others their parts, each step draws a
batch for every rank there; and it completes the last batch of an epoch with rows of the first one, which is therefore
part of every version of that rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers.trainer
from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard
from torch.utils.data import DataLoader

from deadpool.errors import ConfigError
from deadpool.snapshot.data.position import DataPosition

_NAME = "the training data"


def require_supported_loader(loader: Any) -> None:
    if type(loader) not in (DataLoaderShard, DataLoaderDispatcher):
        raise ConfigError(f"{_NAME}: a {type(loader).__name__} cannot be protected: use a loader that Accelerate made")
    if type(loader.base_dataloader) is not DataLoader:
        raise ConfigError(
            f"{_NAME}: a {type(loader.base_dataloader).__name__} cannot be protected with transformers.Trainer: leave "
            "out use_stateful_dataloader, the position of the plain loader is known"
        )


class TrainerData:
    """`consumed` tells how many batches of the epoch the updates have used. `loader` is that of all epochs; the first
    one of a training that goes on from a checkpoint has another, which skips what was trained on before."""

    def __init__(self, loader: Any, consumed: Callable[[], int]) -> None:
        self._loader, self._consumed = loader, consumed
        self._is_dispatched = type(loader) is DataLoaderDispatcher
        self._per_step = loader.state.num_processes if self._is_dispatched and not loader.split_batches else 1
        self._main = self._position(loader, 0)
        self._skipping: tuple[int, Any, DataPosition] | None = None
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
            raise ConfigError(
                f"{_NAME}: a training that goes on from a checkpoint in the middle of an epoch cannot be protected "
                "where it reads an IterableDataset: let the checkpoint be of the end of an epoch, or begin without it"
            )
        self._skipping = count, made, self._position(made, count)

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
        elif self._skipping is None:
            self._begin_skipping(transformers.trainer.skip_first_batches, state["skipped"])
        self._main.load_state_dict(state["main"])
        if self._skipping is not None:
            self._skipping[2].load_state_dict(state["skipping"])
