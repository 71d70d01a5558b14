"""Names what a newcomer cannot have, at the first boundary where it shows: parameters that came, went or changed their
shape after protect(), and optimizers that step protected parameters and are not protected.

Survivors go on with such objects, but a newcomer has only what the script builds before its loop. So the job could not
replace a lost rank from then on, and says so before it has to.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from deadpool.snapshot import cures
from deadpool.snapshot.state import ProtectedState
from deadpool.trainer.guards.rules import Rule
from deadpool.trainer.session import Session

_STRUCTURE = "Make all parameters before protect(), unused or frozen at first, and mask instead of removing."
_OPTIMIZER = "Make it before protect() and pass it; change its groups later instead of making a new one."
_NAMED = 8
_DEPTH = 4  # of attributes and containers between a protected object and an optimizer that it steps


class StructureNews:
    """Watches every optimizer of the process, from protect() on."""

    def __init__(self, session: Session, state: ProtectedState) -> None:
        self._session, self._state = session, state
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers that need not be looked at again
        self._strangers: list[str] = []
        if not cures.is_off("D4"):
            register_optimizer_step_pre_hook(self._before_step)

    def tell(self, number: int) -> None:
        """Called at a boundary, after record()."""
        change = self._state.take_structure_change()
        if change is not None:
            names = ", ".join(_short((*change.added, *change.removed, *change.reshaped, *change.regrouped)))
            self._report(number, f"The parameters are others than those that protect() found: {names}.", _STRUCTURE)
        for stranger in self._strangers:
            found = f"{stranger} steps protected parameters and was not passed to protect()."
            self._report(number, found, _OPTIMIZER, kind=stranger)
        self._strangers.clear()

    def _report(self, number: int, found: str, remedy: str, kind: str = "structure") -> None:
        self._session.findings.report(Rule.REPLACED_OBJECTS, found, remedy=remedy, step=number, kind=kind)

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if optimizer in self._known:
            return
        self._known.add(optimizer)
        if self._state.owns_params_of(optimizer) and not is_held(optimizer, self._state.holders):
            self._strangers.append(f"{type(optimizer).__name__} over {_count(optimizer)} parameters")


def is_held(optimizer: object, holders: Iterable[object]) -> bool:
    """Returns whether a protected object is the optimizer or leads to it: then its state is in that object's state, or
    it works for that object (wrappers, ZeRO's inner optimizer, those of Megatron, DeepSpeed and Accelerate)."""
    level, seen = list(holders), set[int]()
    for _ in range(_DEPTH):
        if any(each is optimizer for each in level):
            return True
        seen.update(map(id, level))
        level = [inner for each in level for inner in _inside(each) if id(inner) not in seen]
    return False


def _inside(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return list(value)
    slots = [getattr(value, name, None) for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
    return [*slots, *getattr(value, "__dict__", {}).values()]


def _count(optimizer: Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)


def _short(names: tuple[str, ...]) -> list[str]:
    return [*names[:_NAMED], *([f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else [])]
