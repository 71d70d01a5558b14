"""What Lightning keeps beside model, optimizers and schedulers, and changes in a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.loops.progress import _BaseProgress
from torchmetrics import Metric

from deadpool.integrations.lightning.checkpoint_files import CheckpointFiles
from deadpool.integrations.lightning.held_tensors import held_attributes, set_held_attributes
from deadpool.integrations.lightning.logged import load_logged, logged_state

_OF_LIGHTNING = frozenset(vars(LightningModule()))
_OF_DATA_MODULE = frozenset(vars(LightningDataModule()))
"""Attributes that are not the user's."""
_OF_METRICS = frozenset({"_defaults", "_parameters", "_buffers", "_modules", "_persistent", "_reductions", "_device"})


class Position:
    """Where the loops stand, flags, what was logged in this epoch, and the data that module, data module, metrics and
    callbacks hold."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self.files = trainer, CheckpointFiles(trainer)
        self.was_loaded = False  # since the loops were entered
        self.loaded: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        return {
            "progress": {name: each.state_dict() for name, each in _progress("fit", trainer.fit_loop)},
            "stepped": trainer.fit_loop.epoch_loop._batches_that_stepped,
            "stop": trainer.should_stop,
            "logged": logged_state(trainer),
            "files": self.files.state_dict(),
            "parts": {name: held_attributes(part, but=but) for name, part, but in self._parts()},
            "stateful": {name: each.state_dict() for name, each in self._stateful()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.was_loaded, self.loaded = True, state
        trainer = self._trainer
        for name, each in _progress("fit", trainer.fit_loop):
            _load_progress(each, state["progress"][name])
        trainer.fit_loop.epoch_loop._batches_that_stepped, trainer.should_stop = state["stepped"], state["stop"]
        load_logged(trainer, state["logged"])
        self.files.load_state_dict(state["files"])
        for name, part, _ in self._parts():
            if name in state["parts"]:
                set_held_attributes(part, state["parts"][name], trainer.strategy.root_device)
        for name, each in self._stateful():
            if name in state["stateful"]:
                each.load_state_dict(state["stateful"][name])

    def _parts(self) -> Iterator[tuple[str, Any, frozenset[str]]]:
        module = self._trainer.lightning_module
        yield "module", module, _OF_LIGHTNING
        if self._trainer.datamodule is not None:
            yield "data module", self._trainer.datamodule, _OF_DATA_MODULE
        for name, each in module.named_modules():
            if isinstance(each, Metric):
                yield f"metric {name}", each, _OF_METRICS
        for name, callback in self._callbacks():
            yield name, callback, frozenset()

    def _stateful(self) -> Iterator[tuple[str, Any]]:
        if self._trainer.datamodule is not None:
            yield "data module", self._trainer.datamodule
        yield from self._callbacks()

    def _callbacks(self) -> Iterator[tuple[str, Any]]:
        """Yields the callbacks by name; those of a rehearsal have other names. A progress bar is drawn anew by a fresh
        process.
        """
        for index, callback in enumerate(self._trainer.callbacks):
            if not isinstance(callback, ProgressBar):
                yield f"callback {index} {type(callback).__name__}", callback


def _progress(name: str, loop: Any) -> Iterator[tuple[str, _BaseProgress]]:
    for key, value in vars(loop).items():
        if isinstance(value, _BaseProgress):
            yield f"{name}.{key}", value
        elif isinstance(value, _Loop):
            yield from _progress(f"{name}.{key}", value)


def _load_progress(progress: _BaseProgress, state: dict[str, Any]) -> None:
    """Trackers keep their identity: Lightning's own load_state_dict would put dictionaries in their places."""
    for key, value in state.items():
        held = getattr(progress, key)
        if isinstance(held, _BaseProgress):
            _load_progress(held, value)
        else:
            setattr(progress, key, value)
