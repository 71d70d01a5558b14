"""Metrics of torchmetrics inside of protected modules. Their sums are plain attributes, neither parameters nor buffers,
so that nothing else would capture them. Metrics on a device are waited for at the boundary."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from deadpool.errors import StateError

_LEAVES = (bool, int, float, str, bytes, type(None))
_DICTS = (dict, OrderedDict, Counter, defaultdict)
_LISTS = (list, tuple, set, deque)
_DEPTH = 4
_NO_STATE = frozenset(vars(nn.Module())) | {"_defaults", "_persistent", "_reductions"}
_COMPUTED = frozenset({"_computed", "_forward_cache"})
"""What a metric has computed from its state, and computes again if it finds None."""


class Metrics:
    """All metrics of the modules, also those that are made later, as by a MetricTracker for each epoch."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._roots = {
            f"{name}.{path}": each
            for name, module in modules.items()
            for path, each in module.named_modules()
            if type(each).__module__.partition(".")[0] == "torchmetrics" or _is_metric(each)
        }

    def __bool__(self) -> bool:
        return bool(self._roots)

    def state_dict(self) -> dict[str, Any]:
        return {path: _state_of(metric) for path, metric in self._all()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        here = dict(self._all())
        if here.keys() != state.keys():
            raise StateError(
                f"the snapshot has the metrics {', '.join(sorted(state))}, and this process has "
                f"{', '.join(sorted(here))}: make all metrics before protect()"
            )
        for path, metric in here.items():
            _load(metric, state[path])

    def _all(self) -> Iterator[tuple[str, nn.Module]]:
        seen: set[int] = set()
        for name, root in self._roots.items():
            for path, each in root.named_modules():
                if id(each) not in seen:
                    seen.add(id(each))
                    yield f"{name} {path}", each


def find_metrics(modules: Mapping[str, nn.Module]) -> dict[str, Metrics]:
    """Returns them under a name that no keyword can have; {} if there are none."""
    found = Metrics(modules) if "torchmetrics" in sys.modules else None
    return {"metrics of modules": found} if found else {}


def _is_metric(module: nn.Module) -> bool:
    torchmetrics = sys.modules["torchmetrics"]
    return isinstance(module, (torchmetrics.Metric, torchmetrics.MetricCollection))


def _state_of(metric: nn.Module) -> dict[str, Any]:
    held = {name: value for name, value in vars(metric).items() if name not in _NO_STATE | _COMPUTED}
    return {name: _portable(value) for name, value in held.items() if _is_data(value)}


def _load(metric: nn.Module, state: dict[str, Any]) -> None:
    for name, value in state.items():
        live = vars(metric).get(name)
        if isinstance(live, defaultdict):  # it has its factory, which could not be stored
            live.clear()
            live.update(value)
        else:
            setattr(metric, name, value)
    for name in _COMPUTED & vars(metric).keys():
        setattr(metric, name, None)


def _is_data(value: Any, depth: int = _DEPTH) -> bool:
    if type(value) in _LEAVES or isinstance(value, Tensor | np.bool_ | np.number):
        return True
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufc"
    if depth and type(value) in _DICTS:
        return all(type(key) in _LEAVES and _is_data(each, depth - 1) for key, each in value.items())
    return bool(depth) and type(value) in _LISTS and all(_is_data(each, depth - 1) for each in value)


def _portable(value: Any) -> Any:
    """The containers are those of this moment: a metric appends to its lists."""
    if isinstance(value, Tensor):
        return value.detach()
    if type(value) in (dict, defaultdict):
        return {key: _portable(each) for key, each in value.items()}
    if type(value) in (OrderedDict, Counter):
        return type(value)({key: _portable(each) for key, each in value.items()})
    if type(value) is deque:
        return deque((_portable(each) for each in value), value.maxlen)
    return type(value)(_portable(each) for each in value) if type(value) in _LISTS else value
