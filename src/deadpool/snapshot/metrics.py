"""Metrics of torchmetrics inside of protected modules. Their sums are plain attributes, neither parameters nor buffers,
so that nothing else would capture them. Metrics on a device are waited for at the boundary."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

_LEAVES = (bool, int, float, str, bytes, type(None))
_DEPTH = 4
_OF_MODULES = frozenset(vars(nn.Module()))
_NO_STATE = _OF_MODULES | {"_defaults", "_persistent", "_reductions"}
_CACHES = frozenset({"_computed", "_forward_cache", "_cache"})
"""What a metric has computed from its state, and computes again if it finds None."""


class MetricState:
    """The data that a metric, or a collection of them, keeps in its attributes."""

    def __init__(self, metric: nn.Module) -> None:
        self._metric = metric

    def state_dict(self) -> dict[str, Any]:
        held = {name: value for name, value in vars(self._metric).items() if name not in _NO_STATE | _CACHES}
        return {name: _portable(value) for name, value in held.items() if _is_data(value)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self._metric, name, value)
        for name in _CACHES & vars(self._metric).keys():
            setattr(self._metric, name, None)


def metric_states(modules: Mapping[str, nn.Module]) -> dict[str, MetricState]:
    """Returns those of all metrics found in the modules, under names that no keyword can have."""
    torchmetrics = sys.modules.get("torchmetrics")
    if torchmetrics is None:
        return {}
    kinds = (torchmetrics.Metric, torchmetrics.MetricCollection)
    return {
        f"metric {name}.{path}": MetricState(each)
        for name, module in modules.items()
        for path, each in module.named_modules()
        if isinstance(each, kinds)
    }


def _is_data(value: object, depth: int = _DEPTH) -> bool:
    if type(value) in _LEAVES or isinstance(value, Tensor):
        return True
    if depth and type(value) is dict:
        return all(type(key) in _LEAVES and _is_data(each, depth - 1) for key, each in value.items())
    return bool(depth) and type(value) in (list, tuple) and all(_is_data(each, depth - 1) for each in value)  # type: ignore[attr-defined]


def _portable(value: Any) -> Any:
    """The containers are those of this moment: a metric appends to its lists."""
    if isinstance(value, Tensor):
        return value.detach()
    if type(value) is dict:
        return {key: _portable(each) for key, each in value.items()}
    return type(value)(_portable(each) for each in value) if type(value) in (list, tuple) else value
