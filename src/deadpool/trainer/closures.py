"""Optimizers that run forward and backward themselves, in `step(closure)`: LBFGS does, and Lightning trains that way.

Such an optimizer changes the state when its closure has returned for the first time, not when its step begins. All of
torch's do; a copy of one that writes earlier is found to be torn (snapshot/state.py, is_untouched).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def after_closure(args: tuple[Any, ...], kwargs: dict[str, Any], act: Callable[[], None]) -> Arguments | None:
    """The arguments of an optimizer's step, as its pre-hook gets them, changed so that `act` is called once when the
    closure has returned. None: it has no closure."""
    if callable(closure := kwargs.get("closure")):
        return args, {**kwargs, "closure": _Noticed(closure, act)}
    if len(args) > 1 and callable(args[1]):  # the first is the optimizer
        return (args[0], _Noticed(args[1], act), *args[2:]), kwargs
    return None


class _Noticed:
    def __init__(self, closure: Callable[..., Any], act: Callable[[], None]) -> None:
        self._closure, self._act = closure, act
        self._is_noticed = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._closure(*args, **kwargs)
        if not self._is_noticed:
            self._is_noticed = True
            self._act()
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._closure, name)  # what a library keeps on its closures
