"""The objects that a script protects, sorted by kind.

Sorts the objects that protect() got by kind, and checks them. It does not change the live objects it holds.

Parameters are collected here, and once more where a script has put others in their places (structure.py). During a
forward pass FSDP2 registers the gathered tensors, but the job's state consists of the sharded originals.

`TensorDict` and `Entries`: Tensors that belong to no module: a dict of them is protected like the parameters of one.

They keep their identity, as parameters do: other code may hold them, and two entries may share memory. So a step
changes them in place. What a step that was cut off did to the dict itself is undone.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from torch import Tensor, nn
from torch.optim import Optimizer

from deadpool.errors import ConfigError, StateError
from deadpool.snapshot.state.loaders import require_own_generators, with_position
from deadpool.snapshot.state.optimizers import optimizers_in, require_nothing_beside, scalers_of

_DICTS = (dict, OrderedDict, defaultdict)
"""The kinds of dicts, without their subclasses, which may have state of their own."""


def is_tensor_dict(value: object) -> TypeGuard[dict[str, Tensor]]:
    if type(value) not in _DICTS or not value:
        return False
    items = value.items()  # type: ignore[attr-defined]
    return all(isinstance(key, str) and isinstance(each, Tensor) for key, each in items)


class TensorDict(nn.Module):
    """Has the tensors for its parameters."""

    def __init__(self, name: str, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self._tensors = dict(tensors)
        for key, each in tensors.items():
            if each.requires_grad:
                raise ConfigError(
                    f"{name}[{key!r}] requires gradients: put such tensors into an nn.ParameterDict, and protect that"
                )

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, Any]]:
        yield from self._tensors.items()


class Entries:
    """Which tensors the dict has, in which order: those that it had when it was protected."""

    def __init__(self, name: str, tensors: dict[str, Tensor]) -> None:
        self._name, self._live, self._kept = name, tensors, dict(tensors)

    def state_dict(self) -> dict[str, Any]:
        """Called at the end of each step."""
        live, kept = list(self._live.items()), list(self._kept.items())
        if len(live) != len(kept) or any(a != b or x is not y for (a, x), (b, y) in zip(live, kept, strict=True)):
            changed = [key for key, each in kept if self._live.get(key) is not each]
            changed += [key for key, _ in live if key not in self._kept]
            raise StateError(
                f"{self._name}: a step has replaced, added or removed {', '.join(map(repr, changed)) or 'entries'}: "
                "change the tensors of a protected dict in place, as in tensor.copy_(...), and keep its keys"
            )
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._live.clear()
        self._live.update(self._kept)


Key = tuple[str, str, str | int, Any]
"""("param", keyword, name, ""), ("state", keyword, index of the parameter, key in optimizer.state) or
("buffer", keyword, path of the submodule, name)."""


@dataclass(frozen=True, slots=True)
class ProtectedOptimizer:
    """An optimizer, and the one that holds its state: ZeroRedundancyOptimizer keeps it in an inner optimizer."""

    name: str
    outer: Optimizer
    inner: Optimizer

    @property
    def params(self) -> list[Tensor]:
        return [param for group in self.inner.param_groups for param in group["params"]]

    @property
    def is_sharded(self) -> bool:
        """Returns whether each rank keeps the state of other parameters, though the parameters are replicated."""
        return self.inner is not self.outer


@dataclass(frozen=True, slots=True)
class Objects:
    modules: dict[str, nn.Module]
    optimizers: dict[str, ProtectedOptimizer]
    stateful: dict[str, Any]
    params: dict[Key, Tensor]


class ModuleTrees:
    """All submodules of the protected modules, by keyword and path: walking the tree at every step would be slow."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules
        self.paths: dict[str, dict[str, nn.Module]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Walks the modules again: a submodule may have been added."""
        self.paths = {name: dict(module.named_modules()) for name, module in self._modules.items()}


def sort_objects(objects: Mapping[str, object]) -> Objects:
    """Sorts objects by kind. Raises a ConfigError for an object that cannot be protected."""
    if not objects:
        raise ConfigError("protect() got nothing to protect: pass model=..., optimizer=..., scheduler=..., data=...")
    modules: dict[str, nn.Module] = {}
    stateful: dict[str, Any] = {}
    optimizers: dict[str, ProtectedOptimizer] = {}
    scalers: dict[str, Any] = {}
    for name, value in objects.items():
        if isinstance(value, nn.Module):
            modules[name] = value
        elif is_tensor_dict(value):
            modules[name] = TensorDict(name, value)
            stateful[f"entries of {name}"] = Entries(name, value)
        elif found := optimizers_in(value):
            require_nothing_beside(name, value, next(iter(found.values())))
            optimizers |= _new_ones(name, found, optimizers)
            scalers |= {f"{name}{path}": scaler for path, scaler in scalers_of(value).items()}
        else:
            stateful[name] = _require_stateful(name, with_position(name, value))
    require_own_generators(stateful, objects)
    stateful |= {path: each for path, each in scalers.items() if all(each is not known for known in stateful.values())}
    return Objects(modules, optimizers, stateful, collect_params(modules, optimizers, {}))


def _new_ones(
    name: str, found: dict[str, Optimizer], known: dict[str, ProtectedOptimizer]
) -> dict[str, ProtectedOptimizer]:
    """Returns the optimizers that are not known yet: two keywords may lead to the same one. The outermost optimizer is
    named by the keyword alone."""
    outermost = next(iter(found))
    named = {name if path == outermost else f"{name}{path}": each for path, each in found.items()}
    return {
        path: ProtectedOptimizer(path, each, _home_of_state(each))
        for path, each in named.items()
        if all(each is not other.outer for other in known.values())
    }


def describe(key: Key) -> str:
    """Returns the name of a tensor as a user would write it."""
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
    accepted = (
        "pass an nn.Module, a torch.optim.Optimizer, a dict of tensors or an object with state_dict() and "
        "load_state_dict()"
    )
    if isinstance(value, (list, tuple, dict)):
        return f"{accepted}; pass several objects under a keyword each"
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        return accepted
    return (
        "its position cannot be saved or restored: use torchdata's StatefulDataLoader, or an object of your own "
        "with __next__, state_dict() and load_state_dict()"
    )


def collect_params(
    modules: dict[str, nn.Module], optimizers: dict[str, ProtectedOptimizer], known: Mapping[Key, Tensor]
) -> dict[Key, Tensor]:
    """Returns every parameter once, under its first name: parameters may be tied, and modules may be passed twice.
    Those that are `known` are taken from there."""
    params: dict[Key, Tensor] = {}
    seen: set[int] = set()
    for key, found in _all_params(modules, optimizers):
        param = known.get(key, found)
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
