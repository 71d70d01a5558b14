"""What Lightning keeps beside model, optimizers and schedulers, and changes in a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.loops.progress import _BaseProgress
from torchmetrics import Metric

from deadpool.integrations.lightning.checkpoint_files import CheckpointFiles
from deadpool.integrations.lightning.logged import load_logged, logged_state
from deadpool.integrations.plain_state import plain_attributes, set_plain_attributes

_OF_LIGHTNING = frozenset(vars(LightningModule()))
"""Attributes of a module that are not the user's."""
_OF_METRICS = frozenset({"_defaults", "_parameters", "_buffers", "_modules", "_persistent", "_reductions"})


class Position:
    """Where the loops stand, flags, what was logged in this epoch, and the plain data of module and callbacks."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self.files = trainer, CheckpointFiles(trainer)
        self.was_loaded = False  # since the loops were entered
        self.loaded: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        epoch_loop = trainer.fit_loop.epoch_loop
        return {
            "progress": {name: each.state_dict() for name, each in _progress("fit", trainer.fit_loop)},
            "stepped": epoch_loop._batches_that_stepped,
            "stop": trainer.should_stop,
            "logged": logged_state(trainer),
            "files": self.files.state_dict(),
            "parts": {name: plain_attributes(part, but=but) for name, part, but in self._parts()},
            "metrics": {name: plain_attributes(each, but=_OF_METRICS) for name, each in self._metrics()},
            "callbacks": {name: each.state_dict() for name, each in self._callbacks()},
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
                set_plain_attributes(part, state["parts"][name])
        for name, metric in self._metrics():
            set_plain_attributes(metric, state["metrics"][name])
        for name, callback in self._callbacks():
            if name in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][name])

    def _parts(self) -> Iterator[tuple[str, Any, frozenset[str]]]:
        yield "module", self._trainer.lightning_module, _OF_LIGHTNING
        for name, callback in self._callbacks():
            yield name, callback, frozenset()

    def _metrics(self) -> Iterator[tuple[str, Metric]]:
        for name, module in self._trainer.lightning_module.named_modules():
            if isinstance(module, Metric):
                yield name, module

    def _callbacks(self) -> Iterator[tuple[str, Any]]:
        """In a rehearsal there are none."""
        for index, callback in enumerate(self._trainer.callbacks):
            yield f"callback {index} {type(callback).__name__}", callback


def _progress(name: str, loop: Any) -> Iterator[tuple[str, _BaseProgress]]:
    for key, value in vars(loop).items():
        if isinstance(value, _BaseProgress):
            yield f"{name}.{key}", value
        elif isinstance(value, _Loop):
            yield from _progress(f"{name}.{key}", value)


def _load_progress(progress: _BaseProgress, state: dict[str, Any]) -> None:
    """Lightning's own load_state_dict puts plain dictionaries where trackers were, in some versions."""
    for key, value in state.items():
        held = getattr(progress, key)
        if isinstance(held, _BaseProgress):
            _load_progress(held, value)
        else:
            setattr(progress, key, value)
