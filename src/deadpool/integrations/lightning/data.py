"""The training loaders of Lightning: where they stand, and how its loop is given them again (snapshot/data).

Lightning begins to read when `fit` sets up its data, before its first step, and reads one batch ahead where it cannot
tell how many there are. Several loaders are read side by side, the shorter ones again from their start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from lightning.pytorch.loops import fit_loop as loop_of_fit
from torch.utils.data import DataLoader

from deadpool.integrations.lightning.refusals import LightningRefusal
from deadpool.integrations.refusals import Refused
from deadpool.snapshot.data.position import DataPosition
from deadpool.snapshot.state.rng import capture_rng, restore_rng


class LightningData:
    def __init__(self) -> None:
        self._loop: Any = None
        self._positions: list[DataPosition] = []
        self._modes: dict[str, Any] | None = None

    @contextlib.contextmanager
    def attached(self, fit_loop: Any) -> Iterator[None]:
        """Inside, Lightning sets up its loaders: their positions are known before it reads."""
        original = loop_of_fit._select_data_fetcher

        def select(*args: Any, **kwargs: Any) -> Any:
            self._attach(fit_loop)
            return original(*args, **kwargs)

        loop_of_fit._select_data_fetcher = select
        try:
            yield
        finally:
            loop_of_fit._select_data_fetcher = original

    def _attach(self, fit_loop: Any) -> None:
        self._loop, loaders = fit_loop, fit_loop._combined_loader.flattened
        for loader in loaders:
            if not isinstance(loader, DataLoader) or type(loader)._get_iterator is not DataLoader._get_iterator:
                raise Refused(
                    LightningRefusal.OTHER_LOADER,
                    f"the training data: a {type(loader).__name__} cannot be protected with lightning.Trainer: use "
                    "torch's DataLoader, whose position is known",
                )
        names = ["data"] if len(loaders) == 1 else [f"data {index}" for index in range(len(loaders))]
        self._positions = [
            DataPosition(f"the training {name}", loader, enters_again=True)
            for name, loader in zip(names, loaders, strict=True)
        ]
        for position in self._positions:
            position.ahead = self._ahead

    def begin_resumed_epoch(self) -> None:
        """Called where a checkpoint has led into an epoch, and samplers know it. Lightning has called iter() before,
        which draws nothing of an order without workers: the position has to begin with what samplers hold now."""
        fetcher, loaders = self._loop._data_fetcher, self._loop._combined_loader.flattened
        if fetcher.length is None or any(each.num_workers for each in loaders):
            return
        rng = capture_rng()
        iter(fetcher)
        restore_rng(rng)

    def _ahead(self) -> int:
        """Returns how many batches were read that no step has used."""
        return len(getattr(self._loop._data_fetcher, "batches", ()))

    def _combined(self) -> Any:
        return self._loop._combined_loader._iterator

    def enter_again(self) -> None:
        """The epoch is read on where the step begins that is due."""
        fetcher = self._loop._data_fetcher
        iter(fetcher)
        if self._modes is not None and (combined := self._combined()) is not None:
            combined._idx = self._modes["index"]
            if self._modes["consumed"] is not None:
                combined._consumed = list(self._modes["consumed"])

    def state_dict(self) -> dict[str, Any]:
        combined, ahead = self._combined(), self._ahead()
        consumed = getattr(combined, "_consumed", None)
        return {
            "positions": [each.state_dict() for each in self._positions],
            "modes": None
            if combined is None
            else {"index": combined._idx - ahead, "consumed": None if consumed is None else list(consumed)},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._modes = state["modes"]
        for position, stored in zip(self._positions, state["positions"], strict=True):
            position.load_state_dict(stored)
