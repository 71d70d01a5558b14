"""Optimizers inside of others: which ones hold state, and what else a wrapper keeps.

A wrapper passes calls on to the optimizer that it holds: Accelerate's (a subclass of torch's Optimizer that was never
initialised as one), Lightning's and many a script's own (no subclass at all), apex' and Megatron's. The one inside
holds the state and is what runs, so that is what is captured and hooked. A scheduler holds an optimizer too, but
clears no gradients. An optimizer that is a real one and holds another, such as SAM around SGD, keeps state in both.
"""

from __future__ import annotations

from types import MemberDescriptorType
from typing import Any

from torch.amp import GradScaler
from torch.optim import Optimizer

from deadpool.errors import ConfigError

_INSIDE = ("optimizer", "_optimizer", "optim", "base_optimizer", "_base_optimizer")


def optimizers_in(value: object) -> dict[str, Optimizer]:
    """The real ones that are stepped when `value` is, by the path to them, outermost first; {} if it is none."""
    found: dict[str, Optimizer] = {}
    path, at = "", value
    while at is not None and not any(at is known for known in found.values()):
        if is_real(at):
            found[path] = at  # type: ignore[assignment]
        at, path = _inner(at, path)
    return found


def is_real(value: object) -> bool:
    """Initialised as torch's own: it has parameters, state and hooks."""
    return isinstance(value, Optimizer) and {"param_groups", "state", "_optimizer_step_pre_hooks"} <= vars(value).keys()


def scalers_of(value: object) -> dict[str, GradScaler]:
    """What the wrappers around the innermost optimizer scale losses with, by the path to it."""
    found: dict[str, GradScaler] = {}
    path, at = "", value
    while at is not None and not is_real(at):
        found |= {f"{path}.{key}": each for key, each in _attributes(at).items() if isinstance(each, GradScaler)}
        at, path = _inner(at, path)
    return found


def require_nothing_beside(name: str, value: object, inner: Optimizer) -> None:
    """ConfigError: the wrapper has a state of its own, which cannot be told from that of the optimizer inside."""
    state_dict = getattr(value, "state_dict", None)
    if value is inner or not callable(state_dict):
        return
    beside = sorted(map(str, state_dict().keys() - inner.state_dict().keys()))
    if beside:
        raise ConfigError(
            f"{name}: {type(value).__name__} wraps {type(inner).__name__} and has a state of its own beside it "
            f"({', '.join(beside)}): pass the optimizer inside, and under another keyword an object whose state_dict() "
            "and load_state_dict() are of the rest"
        )


def _inner(value: object, path: str) -> tuple[object | None, str]:
    """What it steps, if it is an optimizer or behaves like one."""
    if not all(callable(getattr(value, method, None)) for method in ("step", "zero_grad")) or _is_zero(value):
        return None, path
    for name in _INSIDE:
        inner: Any = _attributes(value).get(name) if hasattr(value, "__dict__") else getattr(value, name, None)
        if is_real(inner) or (inner is not None and _inner(inner, "")[0] is not None):
            return inner, f"{path}.{name}"
    return None, path


def _attributes(value: object) -> dict[str, Any]:
    """Its own ones, in its dictionary or in slots: asked for by name, a wrapper would pass on the other's."""
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
    """ZeroRedundancyOptimizer: one optimizer in two halves, known to whoever captures it."""
    return type(value).__name__ == "ZeroRedundancyOptimizer" and is_real(value)
