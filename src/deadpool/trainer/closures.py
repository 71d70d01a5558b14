"""Optimizers that run forward and backward themselves, in `step(closure)`: LBFGS does, and Lightning trains that way.

Torch's own optimizers change the state only when their closure has returned. Others may change it before (SAM does, and
some through `.data`, where nobody sees it), so for them an update begins when their step does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_TORCHS = ("torch.optim.", "torch.distributed.optim.")


def after_closure(args: tuple[Any, ...], kwargs: dict[str, Any], on_returned: Callable[[], None]) -> Arguments | None:
    """The arguments of an optimizer's step, as its pre-hook gets them, changed so that `on_returned` is called once,
    when the closure has returned. None: it has no closure, or may change the state before."""
    if not _calls_closure_first(type(args[0])):
        return None
    if callable(closure := kwargs.get("closure")):
        return args, {**kwargs, "closure": _ClosureWithCallback(closure, on_returned)}
    if len(args) > 1 and callable(args[1]):
        return (args[0], _ClosureWithCallback(args[1], on_returned), *args[2:]), kwargs
    return None


def _calls_closure_first(kind: type) -> bool:
    """Whether the `step` of this class is one of torch's. A wrapper around it counts as what it wraps."""
    step = getattr(kind, "step", None)
    return getattr(step, "__module__", "").startswith(_TORCHS)


class _ClosureWithCallback:
    def __init__(self, closure: Callable[..., Any], on_returned: Callable[[], None]) -> None:
        self._closure, self._on_returned = closure, on_returned
        self._has_returned = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._closure(*args, **kwargs)
        if not self._has_returned:
            self._has_returned = True
            self._on_returned()
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._closure, name)  # what a library keeps on its closures
