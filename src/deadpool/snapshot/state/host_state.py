"""The part of a rank's state that lies in host memory.

`HostState`: the host part of a rank's state: what forward, scheduler and data loader may change between two
optimizer steps.

The main thread captures and restores it at the step boundary. A captured part is a copy in bytes, which later
changes do not reach. Each part is encoded by itself, under its keyword in protect(), so that errors can name it.

`capture_module`, `restore_module` and `overwrite`: Buffers in host memory and further state of one protected module,
captured in bytes and restored.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from deadpool.errors import DeadPoolError, StateError
from deadpool.snapshot.copying.bulk import states_of
from deadpool.snapshot.identity.buffer_objects import BufferObjects, BufferPlace
from deadpool.snapshot.identity.gradients import GradientObjects
from deadpool.snapshot.record.record import decode, encode
from deadpool.snapshot.record.tensors import dense_part, is_dtensor, local_part
from deadpool.snapshot.state.attributes import Attributes, Modes, capture_modes, restore_modes
from deadpool.snapshot.state.objects import Key, ModuleTrees, Objects, ProtectedOptimizer
from deadpool.snapshot.state.own_state import capture_added, capture_own, modules_that_add, restore_added, restore_own
from deadpool.snapshot.state.rng import capture_rng, is_sparse, overwrite_sparse, restore_rng


def capture_module(
    name: str, submodules: dict[str, nn.Module], adding: dict[str, nn.Module], cloned: frozenset[Key]
) -> bytes:
    """Encodes all buffers, also None and non-persistent ones, extra states, and what the modules that are `adding` to
    their state dict have there. Of cloned buffers only the names are encoded."""
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
    parts: dict[str, Any] = {"buffers": buffers, "elsewhere": elsewhere, "passing": passing, "extra_state": extras}
    added = {path: found for path, module in adding.items() if (found := capture_own(module))}
    return encode(parts | {"added": added} if added else parts, name)


def _passing(module: nn.Module) -> set[str]:
    return module._non_persistent_buffers_set & set(module._buffers)


def _has_extra_state(module: nn.Module) -> bool:
    return type(module).get_extra_state is not nn.Module.get_extra_state


def restore_module(name: str, submodules: dict[str, nn.Module], stored: dict[str, Any]) -> None:
    for path, module in submodules.items():
        passing, elsewhere = set(stored["passing"].get(path, ())), stored["elsewhere"].get(path, [])
        names = {*stored["buffers"].get(path, {}), *elsewhere}
        _forget_buffers(module, names)
        _restore_buffers(f"{name}.{path}".rstrip("."), module, stored["buffers"].get(path, {}), passing)
        module._non_persistent_buffers_set -= names - passing
        module._non_persistent_buffers_set |= names & passing
    for path, state in stored["extra_state"].items():
        submodules[path].set_extra_state(state)
    for path, added in stored.get("added", {}).items():
        restore_own(f"{name}.{path}".rstrip("."), submodules[path], added)
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
        elif live is None or value is None or not overwrite(live, value):
            if live is not None and is_dtensor(live):
                raise StateError(f"{path}.{name}: a DTensor buffer changed its shape, it cannot be put back")
            module._buffers[name] = value


def overwrite(live: Tensor, value: Tensor) -> bool:
    """Writes the value into the live tensor and returns whether it fits. Torch refuses to write into a tensor that was
    made in its inference mode."""
    local = local_part(live)
    if local.is_inference():
        return False
    if is_sparse(local) or is_sparse(value):
        return overwrite_sparse(live, value)
    if local.shape != value.shape or local.dtype != value.dtype:
        return False
    memory, stored = dense_part(local), dense_part(value)
    if memory.shape != stored.shape and memory is not local:
        return False  # what was not expanded at the boundary may have elements that differ
    memory.copy_(stored if memory.shape == stored.shape else value)
    return True


HostParts = dict[str, dict[str, bytes]]


class HostState:
    """Captures and restores the host part of the protected objects."""

    def __init__(self, objects: Objects, trees: ModuleTrees) -> None:
        self._objects, self._trees = objects, trees
        self._attributes, self._buffers = Attributes(trees), BufferObjects(trees)
        self._adding: dict[str, dict[str, nn.Module]] = {}
        self._adding_of: object = None
        self._modes: Modes | None = None  # those of the version that was restored last
        self._gradients = GradientObjects()

    def capture(self, cloned: frozenset[Key]) -> HostParts:
        """Captures everything but the contents of the buffers that were `cloned`, which belong to the bulk."""
        with_gradient = self._gradients.remember(self._objects.params.values())
        return self.capture_model_state(cloned) | {
            "stateful": {name: _state_dict(name, value) for name, value in self._objects.stateful.items()},
            "rng": {"rng": encode(capture_rng(), "rng")},
            "modes": {"modes": encode(capture_modes(self._objects, self._trees, with_gradient), "modes")},
            "changes": {
                "attributes": encode(self._attributes.capture(), "attributes of modules"),
                "buffers": encode(self._buffers.capture(), "buffers"),
            },
        }

    def capture_model_state(self, cloned: frozenset[Key] = frozenset()) -> HostParts:
        """Captures the part of model and optimizer, without data position, schedulers and generators."""
        if self._adding_of is not self._trees.paths:
            self._adding = {name: modules_that_add(parts) for name, parts in self._trees.paths.items()}
            self._adding_of = self._trees.paths
        return {
            "module": {
                name: capture_module(name, parts, self._adding[name], cloned)
                for name, parts in self._trees.paths.items()
            },
            "optimizer": {name: _capture_optimizer(value) for name, value in self._objects.optimizers.items()},
        }

    def take_flags_at_risk(self) -> tuple[str, ...]:
        return self._attributes.take_flags_at_risk()

    def take_buffers_over_params(self) -> tuple[str, ...]:
        """Returns the buffers that were assigned later and share memory with a parameter."""
        return self._buffers.take_shared(self._objects.params.values())

    def hold_buffers(self) -> None:
        """Holds the objects that lie under the names of buffers now, for a rank that keeps its memory."""
        self._buffers.capture()

    def find_buffers(self, parts: HostParts) -> dict[Key, BufferPlace]:
        """Returns the objects that lay under the names of buffers at the version, where others lie there now."""
        changes = parts.get("changes")  # an older version of DeadPool did not store them
        return {} if changes is None else self._buffers.find(decode(changes["buffers"], "buffers"))

    def place_buffers(self, placements: dict[Key, BufferPlace]) -> None:
        self._buffers.place(placements)

    def restore(self, parts: HostParts) -> None:
        """Restores all parts. Generators come last, because loading a state may draw random numbers. The objects of
        buffers, and the contents of those that were cloned, are in place already."""
        self._trees.refresh()
        self.require_same_objects(parts)
        with torch.no_grad():
            for name, data in parts["module"].items():
                restore_module(name, self._trees.paths[name], decode(data, name))
            for name, data in parts["optimizer"].items():
                self._restore_optimizer(self._objects.optimizers[name], decode(data, name))
        if "changes" in parts:
            self._attributes.restore(decode(parts["changes"]["attributes"], "attributes of modules"))
        self._modes = decode(parts["modes"]["modes"], "modes")
        restore_modes(self._objects, self._trees, self._modes)
        for name, data in parts["stateful"].items():
            _load_state_dict(name, self._objects.stateful[name], decode(data, f"{name}.state_dict()"))
        restore_rng(decode(parts["rng"]["rng"], "rng"))

    def _restore_optimizer(self, optimizer: ProtectedOptimizer, stored: dict[str, Any]) -> None:
        """What its class adds comes first: loading that may change what is restored after it."""
        if stored.get("added"):
            protected = self._objects.optimizers.values()
            restore_added(
                optimizer, stored["added"], {id(o): o for p in protected for o in (p.outer, p.inner)}.values()
            )
        _restore_optimizer(optimizer, stored)

    def restore_gradients(self) -> None:
        """Gives those parameters a gradient that had one at the version that was restored last."""
        if self._modes is not None:
            self._gradients.restore(self._objects.params.values(), self._modes["with_gradient"])

    def forget_gradients(self) -> None:
        """Other tensors are parameters now."""
        self._gradients.forget()

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


def _capture_optimizer(optimizer: ProtectedOptimizer) -> bytes:
    """Encodes hyperparameters, and the part of the optimizer's state that is not tensors."""
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.outer.param_groups]
    sizes = [len(group["params"]) for group in optimizer.outer.param_groups]
    values = {index: found for index, _, state in states_of(optimizer) if (found := _host_values(state))}
    by_name = {key: value for key, value in optimizer.inner.state.items() if not isinstance(key, Tensor)}
    state: dict[str, Any] = {"groups": groups, "sizes": sizes, "values": values, "by_name": by_name}
    if added := capture_added(optimizer.outer):
        state["added"] = added
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
        if not (isinstance(live, Tensor) and isinstance(value, Tensor) and overwrite(live, value)):
            group[key] = value
