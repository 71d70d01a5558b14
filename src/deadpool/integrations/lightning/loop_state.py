"""What Lightning changes in a step beside what torch keeps.

`held_attributes` and `set_held_attributes`: the plain attributes of an object, as in plain_state.py, where tensors
may also lie on the device: sums of a metric, losses in a list. To store them the host waits for the device.

`logged_state` and `load_logged`: Values that `self.log` keeps: sums over the epoch that is under way, and what was
shown last.

A sum is kept with how it was logged, so that a process that has never logged it can begin with it.

`LoopState`: what Lightning keeps beside model, optimizers and schedulers, and changes in a step.

`CheckpointFiles`: which checkpoints exist, for ModelCheckpoint, which gives a file another name if there is one
already.

A step that is redone saves again. It has to find what the undisturbed run would find: the files that were there
before that step, and not those that the step wrote before the fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.loops.progress import _BaseProgress
from torch import Tensor
from torchmetrics import Metric

from deadpool.integrations.lightning.refusals import LightningRefusal
from deadpool.integrations.plain_state import is_plain, plain_attributes, set_plain_attributes
from deadpool.integrations.refusals import Refused


class _OnHost:
    """Has the same attributes as `owner`, with its tensors on the host."""

    def __init__(self, owner: object, but: frozenset[str]) -> None:
        self.__dict__.update({name: _as_on_host(value) for name, value in vars(owner).items() if name not in but})


def held_attributes(owner: object, *, but: frozenset[str]) -> dict[str, Any]:
    on_device = [name for name, value in vars(owner).items() if name not in but and _has_device_tensor(value)]
    state = plain_attributes(_OnHost(owner, but) if on_device else owner, but=but)
    return {**state, "names": list(vars(owner)), "on_device": on_device}


def set_held_attributes(owner: object, state: dict[str, Any], device: torch.device) -> None:
    moved = {name: _to(state["values"][name], device) for name in state["on_device"] if name in state["values"]}
    set_plain_attributes(owner, {**state, "values": {**state["values"], **moved}})


def _has_device_tensor(value: object, depth: int = 4) -> bool:
    if type(value) is Tensor:
        return value.device.type != "cpu"
    if depth and isinstance(value, list | tuple | dict):
        return any(
            _has_device_tensor(each, depth - 1) for each in (value.values() if isinstance(value, dict) else value)
        )
    return False


def _as_on_host(value: Any) -> Any:
    return _to(value, torch.device("cpu")) if _has_device_tensor(value) else value


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to(device)
    if type(value) is dict:
        return {key: _to(each, device) for key, each in value.items()}
    if type(value) in (list, tuple) and not is_plain(value, 0):
        return type(value)(_to(each, device) for each in value)
    return value


_REDUCTIONS = {"mean": torch.mean, "sum": torch.sum, "max": torch.max, "min": torch.min}
_HOW = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx")
_SUMS = ("value", "cumulated_batch_size", "_forward_cache", "_computed")
_SHOWN = ("_progress_bar_metrics", "_logged_metrics", "_callback_metrics")


def logged_state(trainer: Any) -> dict[str, Any]:
    results, connector = trainer.fit_loop.epoch_loop._results, trainer._logger_connector
    return {
        "results": {key: _of_result(each) for key, each in results.items()},
        "batch_size": results.batch_size,
        "shown": {name: {key: _to_host(value) for key, value in getattr(connector, name).items()} for name in _SHOWN},
        "first_iteration": connector._first_loop_iter,
    }


def load_logged(trainer: Any, state: dict[str, Any]) -> None:
    results, connector = trainer.fit_loop.epoch_loop._results, trainer._logger_connector
    for key in [key for key in results if key not in state["results"]]:
        del results[key]
    for key, each in state["results"].items():
        if key not in results:
            _log_again(trainer, results, each)
        _load_result(trainer, results[key], each)
    results.batch, results.batch_size = None, state["batch_size"]
    for name, values in state["shown"].items():
        getattr(connector, name).clear()
        getattr(connector, name).update({key: _to_device(trainer, value) for key, value in values.items()})
    connector._first_loop_iter = state["first_iteration"]


def _of_result(result: Any) -> dict[str, Any]:
    meta = result.meta
    reduction = next((name for name, known in _REDUCTIONS.items() if meta.reduce_fx is known), None)
    if reduction is None:
        raise Refused(
            LightningRefusal.OTHER_REDUCTION,
            f"self.log({meta.name!r}, reduce_fx=...): only torch.mean, sum, max and min can be protected",
        )
    how = {name: getattr(meta, name) for name in _HOW}
    sync = {"sync_dist": meta.sync._should, "rank_zero_only": meta.sync.rank_zero_only}
    if meta.sync._group is not None:
        raise Refused(LightningRefusal.SYNC_GROUP, f"self.log({meta.name!r}, sync_dist_group=...) cannot be protected")
    sums = {name: _to_host(vars(result)[name]) for name in _SUMS if name in vars(result)} if result.is_tensor else {}
    return {
        "how": {**how, **sync},
        "reduction": reduction,
        "metric": None if result.is_tensor else meta.metric_attribute,
        "sums": sums,
        "has_reset": result.has_reset,
        "updates": result._update_count,
    }


def _log_again(trainer: Any, results: Any, state: dict[str, Any]) -> None:
    module = trainer.lightning_module
    value = torch.zeros((), device=trainer.strategy.root_device)
    if state["metric"] is not None:
        value = module.get_submodule(state["metric"])
    results.log(
        value=value,
        reduce_fx=_REDUCTIONS[state["reduction"]],
        metric_attribute=state["metric"],
        sync_dist_fn=trainer.strategy.reduce,
        batch_size=1,
        **state["how"],
    )


def _load_result(trainer: Any, result: Any, state: dict[str, Any]) -> None:
    for name, value in state["sums"].items():
        vars(result)[name] = _to_device(trainer, value)
    result.has_reset, result._update_count = state["has_reset"], state["updates"]


def _to_host(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value


def _to_device(trainer: Any, value: Any) -> Any:
    return value.to(trainer.strategy.root_device) if isinstance(value, Tensor) else value


class CheckpointFiles:
    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._known: list[_KnownFiles] = []

    def begin(self) -> None:
        """Once callbacks know where they save."""
        found = [each for each in self._trainer.callbacks if isinstance(each, ModelCheckpoint)]
        self._known = [_KnownFiles(each) for each in found]

    def state_dict(self) -> list[list[str]]:
        return [sorted(each.names) for each in self._known]

    def load_state_dict(self, state: list[list[str]]) -> None:
        for each, names in zip(self._known, state, strict=False):
            each.names = set(names)


class _KnownFiles:
    """Stands between a ModelCheckpoint and its file system."""

    def __init__(self, callback: Any) -> None:
        self._files, self._save = callback._fs, callback._save_checkpoint
        folder = str(callback.dirpath or "")
        existing = self._files.ls(folder, detail=False) if folder and self._files.exists(folder) else []
        self.names = {PurePath(path).name for path in existing}
        callback._fs, callback._save_checkpoint = self, self._save_and_note

    def exists(self, path: Any, *args: Any, **kwargs: Any) -> bool:
        is_file = PurePath(path).suffix != ""
        return bool(self._files.exists(path, *args, **kwargs)) and (not is_file or PurePath(path).name in self.names)

    def _save_and_note(self, trainer: Any, filepath: str) -> None:
        self._save(trainer, filepath)
        self.names.add(PurePath(filepath).name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


_OF_LIGHTNING = frozenset(vars(LightningModule()))
_OF_DATA_MODULE = frozenset(vars(LightningDataModule()))
"""Attributes that are not the user's."""
_OF_METRICS = frozenset({"_defaults", "_parameters", "_buffers", "_modules", "_persistent", "_reductions", "_device"})


class LoopState:
    """Where the loops stand, flags, what was logged in this epoch, and the data that module, data module, metrics and
    callbacks hold."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self.files = trainer, CheckpointFiles(trainer)
        self.first = trainer.global_step  # optimizer steps that were done before the job began
        self.was_loaded = False  # since the loops were entered
        self.loaded: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        return {
            "first": self.first,
            "progress": {name: each.state_dict() for name, each in _progress("fit", trainer.fit_loop)},
            "stepped": trainer.fit_loop.epoch_loop._batches_that_stepped,
            "stop": trainer.should_stop,
            "logged": logged_state(trainer),
            "files": self.files.state_dict(),
            "parts": {name: held_attributes(part, but=but) for name, part, but in self._parts()},
            "stateful": {name: each.state_dict() for name, each in self._stateful()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.was_loaded, self.loaded, self.first = True, state, state["first"]
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
