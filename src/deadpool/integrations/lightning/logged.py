"""Values that `self.log` keeps: sums over the epoch that is under way, and what was shown last.

A sum is kept with how it was logged, so that a process that has never logged it can begin with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deadpool.errors import ConfigError

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
        raise ConfigError(f"self.log({meta.name!r}, reduce_fx=...): only torch.mean, sum, max and min can be protected")
    how = {name: getattr(meta, name) for name in _HOW}
    sync = {"sync_dist": meta.sync._should, "rank_zero_only": meta.sync.rank_zero_only}
    if meta.sync._group is not None:
        raise ConfigError(f"self.log({meta.name!r}, sync_dist_group=...) cannot be protected")
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
