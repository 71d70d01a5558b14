"""Buffers in host memory and further state of one protected module, captured in bytes and restored."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from deadpool.errors import StateError
from deadpool.snapshot.record.record import encode
from deadpool.snapshot.record.tensors import dense_part, is_dtensor, local_part
from deadpool.snapshot.state.objects import Key
from deadpool.snapshot.state.own_state import capture_own, restore_own
from deadpool.snapshot.state.sparse import is_sparse, overwrite_sparse


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
    """Writes the value into the live tensor and returns whether it fits."""
    local = local_part(live)
    if is_sparse(local) or is_sparse(value):
        return overwrite_sparse(live, value)
    if local.shape != value.shape or local.dtype != value.dtype:
        return False
    memory, stored = dense_part(local), dense_part(value)
    if memory.shape != stored.shape and memory is not local:
        return False  # what was not expanded at the boundary may have elements that differ
    memory.copy_(stored if memory.shape == stored.shape else value)
    return True
