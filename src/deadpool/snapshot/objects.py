"""What pool.protect() was given, sorted by kind and checked. Holds the live objects, changes nothing in them.

Parameters are collected once, here: while a forward pass runs, frameworks put other tensors in their places (FSDP
registers the gathered ones), and the sharded originals are what the job's state is made of.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from deadpool.errors import ConfigError
from deadpool.snapshot.loaders import with_position
from deadpool.snapshot.optimizers import optimizers_in, require_nothing_beside, scalers_of

Key = tuple[str, str, str | int, Any]
"""("param", keyword, name, ""), ("state", keyword, index of the parameter, key in optimizer.state) or
("buffer", keyword, path of the submodule, name)."""


@dataclass(frozen=True, slots=True)
class ProtectedOptimizer:
    """An optimizer and the one that really holds its state: ZeroRedundancyOptimizer keeps it in an inner one."""

    name: str
    outer: Optimizer
    inner: Optimizer

    @property
    def params(self) -> list[Tensor]:
        return [param for group in self.inner.param_groups for param in group["params"]]

    @property
    def is_sharded(self) -> bool:
        """Replicated parameters, but each rank keeps the state of other ones."""
        return self.inner is not self.outer


@dataclass(frozen=True, slots=True)
class Objects:
    modules: dict[str, nn.Module]
    optimizers: dict[str, ProtectedOptimizer]
    stateful: dict[str, Any]
    params: dict[Key, Tensor]


class ModuleTrees:
    """All submodules of the protected modules, by keyword and path. Walking a tree is not for every step."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules
        self.paths: dict[str, dict[str, nn.Module]] = {}
        self.refresh()

    def refresh(self) -> None:
        """A submodule may have been added since."""
        self.paths = {name: dict(module.named_modules()) for name, module in self._modules.items()}


def sort_objects(objects: Mapping[str, object]) -> Objects:
    """Sort by kind. ConfigError for what cannot be protected."""
    if not objects:
        raise ConfigError("protect() got nothing to protect: pass model=..., optimizer=..., scheduler=..., data=...")
    modules, stateful = {}, {}
    optimizers: dict[str, ProtectedOptimizer] = {}
    scalers: dict[str, Any] = {}
    for name, value in objects.items():
        if isinstance(value, nn.Module):
            modules[name] = value
        elif found := optimizers_in(value):
            require_nothing_beside(name, value, next(iter(found.values())))
            optimizers |= _new_ones(name, found, optimizers)
            scalers |= {f"{name}{path}": scaler for path, scaler in scalers_of(value).items()}
        else:
            stateful[name] = _require_stateful(name, with_position(name, value))
    stateful |= {path: each for path, each in scalers.items() if all(each is not known for known in stateful.values())}
    return Objects(modules, optimizers, stateful, _collect_params(modules, optimizers))


def _new_ones(
    name: str, found: dict[str, Optimizer], known: dict[str, ProtectedOptimizer]
) -> dict[str, ProtectedOptimizer]:
    """Each optimizer once, under its first name: two keywords may lead to the same one. The first has the keyword."""
    outermost = next(iter(found))
    named = {name if path == outermost else f"{name}{path}": each for path, each in found.items()}
    return {
        path: ProtectedOptimizer(path, each, _home_of_state(each))
        for path, each in named.items()
        if all(each is not other.outer for other in known.values())
    }


def describe(key: Key) -> str:
    """The entry as a user would write it."""
    kind, name, index, state_key = key
    match kind:
        case "param":
            return f"{name}.{index}"
        case "buffer":
            return ".".join(part for part in (name, str(index), str(state_key)) if part)
        case _:
            return f"{name}.state[{index}][{state_key!r}]"


def _home_of_state(optimizer: Optimizer) -> Optimizer:
    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    if module is not None and isinstance(optimizer, module.ZeroRedundancyOptimizer):
        inner: Optimizer = optimizer.optim
        return inner
    return optimizer


def _require_stateful(name: str, value: object) -> object:
    missing = [method for method in ("state_dict", "load_state_dict") if not _has_method(value, method)]
    if isinstance(value, type):
        raise ConfigError(f"{name}: got the class {value.__name__} itself, pass an instance of it")
    if missing:
        raise ConfigError(
            f"{name}: got {_article(type(value).__name__)} without {' and '.join(missing)}; {_hint(value)}"
        )
    return value


def _has_method(value: object, method: str) -> bool:
    return callable(getattr(value, method, None))


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def _hint(value: object) -> str:
    accepted = "pass an nn.Module, a torch.optim.Optimizer or an object with state_dict() and load_state_dict()"
    if isinstance(value, (list, tuple, dict)):
        return f"{accepted}; several objects go under a keyword each"
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        return accepted
    return (
        "its position cannot be saved or set back: use torchdata's StatefulDataLoader, or an object of your own "
        "with __next__, state_dict() and load_state_dict()"
    )


def _collect_params(modules: dict[str, nn.Module], optimizers: dict[str, ProtectedOptimizer]) -> dict[Key, Tensor]:
    """Every parameter once, under its first name: tied ones, and modules given twice, are the same memory."""
    params: dict[Key, Tensor] = {}
    seen: set[int] = set()
    for key, param in _all_params(modules, optimizers):
        if id(param) not in seen:
            seen.add(id(param))
            params[key] = param
    return params


def _all_params(
    modules: dict[str, nn.Module], optimizers: dict[str, ProtectedOptimizer]
) -> Iterator[tuple[Key, Tensor]]:
    for name, module in modules.items():
        for param_name, param in module.named_parameters():
            yield ("param", name, param_name, ""), param
    for name, optimizer in optimizers.items():
        outer_params = (param for group in optimizer.outer.param_groups for param in group["params"])
        for index, param in enumerate(outer_params):
            yield ("param", name, f"params.{index}", ""), param
