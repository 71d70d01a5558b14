"""State that libraries and users add to modules and optimizers.

What subclasses of Module and Optimizer add to their state dicts: attributes that only they know how to save, load.

Torch's own classes add nothing, and neither do frameworks whose modules and optimizers an adapter knows: for them
nothing is called.

`Metrics`: Metrics of torchmetrics inside of protected modules. Their sums are plain attributes, neither parameters
nor buffers, so that nothing else would capture them. Metrics on a device are waited for at the boundary.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from deadpool.errors import DeadPoolError, StateError
from deadpool.snapshot.record.tensors import local_address
from deadpool.snapshot.state.cures import is_off
from deadpool.snapshot.state.objects import ProtectedOptimizer

_KNOWN = frozenset(
    (
        *("torch", "torchao", "torchmetrics", "accelerate", "apex", "bitsandbytes", "deepspeed", "lightning"),
        *("megatron", "peft", "pytorch_lightning", "transformer_engine"),
    )
)
"""Packages whose additions are derived from parameters, or captured otherwise."""

_OF_OPTIMIZER = frozenset({"state", "param_groups"})


def modules_that_add(submodules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Returns the modules that may have more in their state dict than parameters, buffers and extra state."""
    if is_off("D6"):
        return {}
    own = {
        kind: _is_own(kind, nn.Module, "_save_to_state_dict") for kind in {type(each) for each in submodules.values()}
    }
    return {path: each for path, each in submodules.items() if own[type(each)] or any(_hooks(each._state_dict_hooks))}


def _is_own(kind: type, base: type, method: str) -> bool:
    """Returns whether a class of the script, or of a library that nobody here knows, overrides the method."""
    owner = next((each for each in kind.__mro__ if method in vars(each)), base)
    return owner is not base and owner.__module__.partition(".")[0] not in _KNOWN


def _hooks(hooks: Mapping[int, Any]) -> Iterator[Any]:
    for hook in hooks.values():
        module = getattr(getattr(hook, "func", hook), "__module__", None) or ""  # a partial has none itself
        if module.partition(".")[0] not in _KNOWN:
            yield hook


def capture_own(module: nn.Module) -> dict[str, Any]:
    """Returns what the module adds, by key; {} if it adds nothing. A parameter under another name is nothing more."""
    known = {*module._parameters, *module._buffers, "_extra_state"}
    memory = {local_address(each) for each in module._parameters.values() if each is not None}
    return {
        key: value
        for key, value in _local_state(module).items()
        if key not in known and not (isinstance(value, Tensor) and _address(value) in memory)
    }


def _address(value: Tensor) -> int | None:
    return local_address(value) if value.layout == torch.strided else None


def _local_state(module: nn.Module) -> dict[str, Any]:
    """Returns the module's part of its state dict, without those of its submodules."""
    state: OrderedDict[str, Any] = OrderedDict()
    metadata = {"version": module._version}
    state._metadata = OrderedDict({"": metadata})  # type: ignore[attr-defined]
    for before in _hooks(module._state_dict_pre_hooks):
        before(module, "", False)
    module._save_to_state_dict(state, "", False)
    for after in _hooks(module._state_dict_hooks):
        after(module, state, "", metadata)
    return dict(state)


def restore_own(path: str, module: nn.Module, added: dict[str, Any]) -> None:
    """Calls the module's own loading with what it added. A module that looks for more than that gets all it has."""
    try:
        try:
            problems = _load(module, dict(added))
        except KeyError:
            problems = _load(module, {**_local_state(module), **added})
    except DeadPoolError:
        raise
    except Exception as error:  # the user's code may raise anything; the message names its module
        problems = [f"{type(error).__name__}: {error}"]
    if problems:
        raise StateError(f"{path}._load_from_state_dict() failed: {problems[0]}")


def _load(module: nn.Module, state: dict[str, Any]) -> list[str]:
    problems: list[str] = []
    module._load_from_state_dict(state, "", {"version": module._version}, False, [], [], problems)
    return problems


def capture_added(optimizer: Optimizer) -> dict[str, Any]:
    """Returns what the optimizer's class adds to its state dict. The state dict of an optimizer inside is none of it:
    that one is protected itself."""
    if is_off("D6") or not _is_own(type(optimizer), Optimizer, "state_dict"):
        return {}
    return {
        key: value
        for key, value in optimizer.state_dict().items()
        if key not in _OF_OPTIMIZER and not (isinstance(value, Mapping) and value.keys() >= _OF_OPTIMIZER)
    }


def restore_added(optimizer: ProtectedOptimizer, added: dict[str, Any], all_optimizers: Iterable[Optimizer]) -> None:
    """Calls the optimizer's own loading. Lists of groups, groups and states stay the objects that they are, because
    schedulers and captured graphs hold them."""
    held = [(each, each.param_groups, list(each.param_groups), each.state) for each in all_optimizers]
    contents = [(group, dict(group)) for _, _, groups, _ in held for group in groups]
    try:
        optimizer.outer.load_state_dict({**optimizer.outer.state_dict(), **added})
    except DeadPoolError:
        raise
    except Exception as error:  # the user's code may raise anything; the message names its object
        raise StateError(f"{optimizer.name}.load_state_dict() failed: {type(error).__name__}: {error}") from error
    finally:
        for each, param_groups, groups, state in held:
            param_groups[:] = groups
            each.param_groups, each.state = param_groups, state
        for group, values in contents:
            group.clear()
            group.update(values)


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
            _load_metric(metric, state[path])

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


def _load_metric(metric: nn.Module, state: dict[str, Any]) -> None:
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
