"""The host part of a rank's state: what forward, scheduler and data loader may change between two optimizer steps.

The main thread captures and restores it at the step boundary. A captured part is a copy in bytes, which later changes
do not reach. Each part is encoded by itself, under its keyword in protect(), so that errors can name it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from deadpool.errors import DeadPoolError, StateError
from deadpool.snapshot.bulk import states_of
from deadpool.snapshot.modes import Modes, capture_modes, restore_gradients, restore_modes
from deadpool.snapshot.objects import Key, ModuleTrees, Objects, ProtectedOptimizer
from deadpool.snapshot.record import decode, encode
from deadpool.snapshot.rng import capture_rng, restore_rng
from deadpool.snapshot.tensors import is_dtensor, local_part

HostParts = dict[str, dict[str, bytes]]


class HostState:
    """Captures and restores the host part of the protected objects."""

    def __init__(self, objects: Objects, trees: ModuleTrees) -> None:
        self._objects, self._trees = objects, trees
        self._modes: Modes | None = None  # those of the version that was restored last

    def capture(self, cloned: frozenset[Key]) -> HostParts:
        """Captures everything but the contents of the buffers that were `cloned`, which belong to the bulk."""
        return self.capture_model_state(cloned) | {
            "stateful": {name: _state_dict(name, value) for name, value in self._objects.stateful.items()},
            "rng": {"rng": encode(capture_rng(), "rng")},
            "modes": {"modes": encode(capture_modes(self._objects, self._trees), "modes")},
        }

    def capture_model_state(self, cloned: frozenset[Key] = frozenset()) -> HostParts:
        """Captures the part of model and optimizer, without data position, schedulers and generators."""
        return {
            "module": {name: _capture_module(name, parts, cloned) for name, parts in self._trees.paths.items()},
            "optimizer": {name: _capture_optimizer(value) for name, value in self._objects.optimizers.items()},
        }

    def restore(self, parts: HostParts) -> None:
        """Restores all parts. Generators come last, because loading a state may draw random numbers. Cloned buffers are
        in place already."""
        self._trees.refresh()
        self.require_same_objects(parts)
        with torch.no_grad():
            for name, data in parts["module"].items():
                _restore_module(name, self._trees.paths[name], decode(data, name))
            for name, data in parts["optimizer"].items():
                _restore_optimizer(self._objects.optimizers[name], decode(data, name))
        self._modes = decode(parts["modes"]["modes"], "modes")
        restore_modes(self._objects, self._trees, self._modes)
        for name, data in parts["stateful"].items():
            _load_state_dict(name, self._objects.stateful[name], decode(data, f"{name}.state_dict()"))
        restore_rng(decode(parts["rng"]["rng"], "rng"))

    def restore_gradients(self) -> None:
        """Gives those parameters a gradient that had one at the version that was restored last."""
        if self._modes is not None:
            restore_gradients(self._objects, self._modes)

    def require_same_objects(self, parts: HostParts) -> None:
        _require_same_names("module", set(self._trees.paths), set(parts["module"]))
        _require_same_names("optimizer", set(self._objects.optimizers), set(parts["optimizer"]))
        _require_same_names("object", set(self._objects.stateful), set(parts["stateful"]))


def _require_same_names(kind: str, here: set[str], stored: set[str]) -> None:
    if here != stored:
        raise StateError(f"the snapshot has the {kind}s {sorted(stored)}, protected here are {sorted(here)}")


def _state_dict(name: str, value: Any) -> bytes:
    return encode(value.state_dict(), f"{name}.state_dict()")


def _load_state_dict(name: str, value: Any, state: Any) -> None:
    try:
        value.load_state_dict(state)
        if isinstance(value, torch.amp.GradScaler) and value.is_enabled():  # one that is not has none
            value._per_optimizer_states.clear()  # that gradients were unscaled in the step that was cut off
    except DeadPoolError:
        raise
    except Exception as error:  # the user's code may raise anything; the message names its object
        raise StateError(f"{name}.load_state_dict() failed: {type(error).__name__}: {error}") from error


def _capture_module(name: str, submodules: dict[str, nn.Module], cloned: frozenset[Key]) -> bytes:
    """Encodes all buffers, also None and non-persistent ones, and extra states. Of cloned buffers only the names are
    encoded."""
    buffers: dict[str, dict[str, Tensor | None]] = {}
    elsewhere: dict[str, list[str]] = {}
    for path, module in submodules.items():
        for key, value in module._buffers.items():
            if ("buffer", name, path, key) in cloned:
                elsewhere.setdefault(path, []).append(key)
            else:
                buffers.setdefault(path, {})[key] = value if value is None else local_part(value)
    owners = dict.fromkeys([*buffers, *elsewhere])
    passing = {path: sorted(_passing(submodules[path])) for path in owners}
    extras = {path: module.get_extra_state() for path, module in submodules.items() if _has_extra_state(module)}
    parts = {"buffers": buffers, "elsewhere": elsewhere, "passing": passing, "extra_state": extras}
    return encode(parts, name)


def _passing(module: nn.Module) -> set[str]:
    return module._non_persistent_buffers_set & set(module._buffers)


def _has_extra_state(module: nn.Module) -> bool:
    return type(module).get_extra_state is not nn.Module.get_extra_state


def _restore_module(name: str, submodules: dict[str, nn.Module], stored: dict[str, Any]) -> None:
    for path, module in submodules.items():
        passing, elsewhere = set(stored["passing"].get(path, ())), stored["elsewhere"].get(path, [])
        _forget_buffers(module, {*stored["buffers"].get(path, {}), *elsewhere})
        _restore_buffers(f"{name}.{path}".rstrip("."), module, stored["buffers"].get(path, {}), passing)
        module._non_persistent_buffers_set -= set(elsewhere) - passing
        module._non_persistent_buffers_set |= set(elsewhere) & passing
    for path, state in stored["extra_state"].items():
        submodules[path].set_extra_state(state)
    missing = sorted(set(stored["buffers"]) - set(submodules))
    if missing:
        raise StateError(f"{name}: the snapshot has buffers of {missing[0]!r}, which is not in the module here")


def _forget_buffers(module: nn.Module, stored: set[str]) -> None:
    for name in set(module._buffers) - stored:
        delattr(module, name)


def _restore_buffers(path: str, module: nn.Module, stored: dict[str, Tensor | None], passing: set[str]) -> None:
    """Writes in place if the buffer fits; a forward pass may have put another tensor there, or added a buffer."""
    for name, value in stored.items():
        live = module._buffers.get(name)
        if live is None and name not in module._buffers:
            module.register_buffer(name, value, persistent=name not in passing)
        elif live is None or value is None or not _overwrite(live, value):
            if live is not None and is_dtensor(live):
                raise StateError(f"{path}.{name}: a DTensor buffer changed its shape, it cannot be put back")
            module._buffers[name] = value


def _overwrite(live: Tensor, value: Tensor) -> bool:
    local = local_part(live)
    if local.shape != value.shape or local.dtype != value.dtype:
        return False
    local.copy_(value)
    return True


def _capture_optimizer(optimizer: ProtectedOptimizer) -> bytes:
    """Encodes hyperparameters, and the part of the optimizer's state that is not tensors."""
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.outer.param_groups]
    sizes = [len(group["params"]) for group in optimizer.outer.param_groups]
    values = {index: found for index, _, state in states_of(optimizer) if (found := _host_values(state))}
    by_name = {key: value for key, value in optimizer.inner.state.items() if not isinstance(key, Tensor)}
    state = {"groups": groups, "sizes": sizes, "values": values, "by_name": by_name}
    return encode(state, f"{optimizer.name}.state_dict()")


def _host_values(state: dict[Any, Any]) -> dict[Any, Any]:
    return {key: value for key, value in state.items() if not isinstance(value, Tensor)}


def _restore_optimizer(optimizer: ProtectedOptimizer, stored: dict[str, Any]) -> None:
    _restore_groups(optimizer.name, optimizer.outer.param_groups, stored["groups"], stored["sizes"])
    if optimizer.inner is not optimizer.outer:
        for group, values in zip(optimizer.inner.param_groups, stored["groups"], strict=False):
            _restore_group(group, values)
    for index, _, state in states_of(optimizer):
        values = stored["values"].get(index, {})
        for key in set(_host_values(state)) - set(values):
            del state[key]
        state.update(values)
    for key in [key for key in optimizer.inner.state if not isinstance(key, Tensor)]:
        del optimizer.inner.state[key]
    optimizer.inner.state.update(stored["by_name"])


def _restore_groups(name: str, live: list[dict[str, Any]], stored: list[dict[str, Any]], sizes: list[int]) -> None:
    here = [len(group["params"]) for group in live[: len(sizes)]]
    if here != sizes:
        raise StateError(f"{name}.param_groups have {here} parameters here, {sizes} in the snapshot")
    del live[len(stored) :]
    for group, values in zip(live, stored, strict=True):
        _restore_group(group, values)


def _restore_group(group: dict[str, Any], values: dict[str, Any]) -> None:
    """Writes a hyperparameter that is a tensor in place, because a captured CUDA graph may read it."""
    for key in set(group) - set(values) - {"params"}:
        del group[key]
    for key, value in values.items():
        live = group.get(key)
        if not (isinstance(live, Tensor) and isinstance(value, Tensor) and _overwrite(live, value)):
            group[key] = value
