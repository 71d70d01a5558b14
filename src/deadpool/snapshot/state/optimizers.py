"""Finds the optimizers inside of wrappers: which of them hold state, and what else a wrapper keeps.

A wrapper passes calls on to the optimizer that it holds. Such wrappers are Accelerate's (a subclass of Optimizer that
was never initialised as one), Lightning's and those of many scripts (no subclass at all), apex' and Megatron's.
The optimizer inside holds the state and does the work, so that one is captured and hooked. A scheduler holds an
optimizer too, but has no zero_grad(). A real optimizer around another one, such as SAM around SGD, keeps state in both.
"""

from __future__ import annotations

from types import MemberDescriptorType
from typing import Any

from torch.amp import GradScaler
from torch.optim import Optimizer

from deadpool.errors import ConfigError

_INSIDE = ("optimizer", "_optimizer", "optim", "base_optimizer", "_base_optimizer")


def optimizers_in(value: object) -> dict[str, Optimizer]:
    """Returns the real optimizers that are stepped when `value` is, by path, outermost first; {} if there are none."""
    found: dict[str, Optimizer] = {}
    path, at = "", value
    while at is not None and not any(at is known for known in found.values()):
        if is_real(at):
            found[path] = at  # type: ignore[assignment]
        at, path = _inner(at, path)
    return found


def is_real(value: object) -> bool:
    """Returns whether the value was initialised as torch's Optimizer: it has parameters, state and hooks."""
    return isinstance(value, Optimizer) and {"param_groups", "state", "_optimizer_step_pre_hooks"} <= vars(value).keys()


def scalers_of(value: object) -> dict[str, GradScaler]:
    """Returns the GradScalers of the wrappers around the optimizer, by path."""
    found: dict[str, GradScaler] = {}
    path, at = "", value
    while at is not None and not is_real(at):
        found |= {f"{path}.{key}": each for key, each in _attributes(at).items() if isinstance(each, GradScaler)}
        at, path = _inner(at, path)
    return found


def require_nothing_beside(name: str, value: object, inner: Optimizer) -> None:
    """Raises a ConfigError if the wrapper has state of its own beside the state of the optimizer inside."""
    state_dict = getattr(value, "state_dict", None)
    if value is inner or not callable(state_dict):
        return
    beside = sorted(map(str, state_dict().keys() - inner.state_dict().keys()))
    if beside:
        raise ConfigError(
            f"{name}: {type(value).__name__} wraps {type(inner).__name__} and has state of its own "
            f"({', '.join(beside)}): pass the optimizer inside, and under another keyword an object whose state_dict() "
            "and load_state_dict() handle the rest"
        )


def _inner(value: object, path: str) -> tuple[object | None, str]:
    """Returns the optimizer that `value` steps, if `value` behaves like an optimizer."""
    if not all(callable(getattr(value, method, None)) for method in ("step", "zero_grad")) or _is_zero(value):
        return None, path
    for name in _INSIDE:
        inner: Any = _attributes(value).get(name) if hasattr(value, "__dict__") else getattr(value, name, None)
        if is_real(inner) or (inner is not None and _inner(inner, "")[0] is not None):
            return inner, f"{path}.{name}"
    return None, path


def _attributes(value: object) -> dict[str, Any]:
    """Returns its own attributes, from its dictionary and its slots: getattr() of a wrapper may return those of the
    optimizer inside."""
    slots = [
        (name, each)
        for kind in type(value).__mro__
        for name, each in vars(kind).items()
        if isinstance(each, MemberDescriptorType)
    ]
    filled = {name: each.__get__(value) for name, each in slots if _is_filled(each, value)}
    return {**filled, **getattr(value, "__dict__", {})}


def _is_filled(slot: MemberDescriptorType, value: object) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


def _is_zero(value: object) -> bool:
    """Returns whether this is a ZeroRedundancyOptimizer: its inner optimizer is handled by ProtectedOptimizer."""
    return type(value).__name__ == "ZeroRedundancyOptimizer" and is_real(value)
