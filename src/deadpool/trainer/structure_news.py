"""Names what a newcomer cannot have, at the first boundary where it shows: parameters that came, went or changed their
shape after protect(), other parameters in the places of FSDP2's, modules of another class, hooks and process groups of
later steps, and optimizers that step protected parameters and are not protected.

Survivors go on with such objects, but a newcomer has only what the script builds before its loop. So the job could not
replace a lost rank from then on, and says so before it has to.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from deadpool.snapshot.state import cures
from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer.adapters.fsdp2 import watch_shards
from deadpool.trainer.guards.carried_gradients import is_of_script
from deadpool.trainer.guards.guard import Rule, is_due
from deadpool.trainer.process import torch_check
from deadpool.trainer.process.session import Session

_STRUCTURE = "Make all parameters before protect(), unused or frozen at first, and mask instead of removing."
_MODULES = "Make all modules before protect(), and let a flag or a buffer decide which one the forward pass uses."
_SHARED = "Assign them before protect(), or assign a clone."
_SHARDS = "Write into the parameters, for example with copy_() or load_state_dict(): fully_shard keeps its own."
_HOOKS = "Register hooks before protect() or in the first step, and let them ask a flag whether to do something."
_OF_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OPTIMIZER = "Make it before protect() and pass it; change its groups later instead of making a new one."
_UNKNOWN = "<frozen hook>"  # of a library, as far as is_of_script() is concerned
_NAMED = 8
_DEPTH = 4  # of attributes and containers between a protected object and an optimizer that it steps


class StructureNews:
    """Watches every optimizer of the process, from protect() on."""

    def __init__(self, session: Session, state: ProtectedState) -> None:
        self._session, self._state = session, state
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers that need not be looked at again
        self._unprotected: list[str] = []
        self._shards = watch_shards(() if torch_check.is_plain() else state.modules)
        self._hooks: dict[str, int] = {}  # how many each module has
        self._is_irreplaceable = False
        self._groups: frozenset[str] | None = None  # all that were there; None: not after a first step yet
        if not cures.is_off("D4"):
            register_optimizer_step_pre_hook(self._before_step)

    @property
    def has_other_shards(self) -> bool:
        """Whether the script has given fully_shard other parameters than those of the boundary."""
        return not cures.is_off("D4") and self._shards.has_others(self._state.param_ids)

    @property
    def is_irreplaceable(self) -> bool:
        """Whether no other process could take this rank, as far as is known: the job would end with it."""
        return self._is_irreplaceable or self._state.has_other_names or bool(self._late_groups())

    def tell(self, number: int) -> None:
        """Called at a boundary, after record()."""
        change = self._state.take_structure_change()
        if change is not None:
            params = (*change.added, *change.removed, *change.reshaped, *change.regrouped)
            if params:
                self._is_irreplaceable = True
                names = ", ".join(_short(params))
                self._report(number, f"The parameters are others than those that protect() found: {names}.", _STRUCTURE)
            elif change.exchanged:
                names = ", ".join(_short(change.exchanged))
                self._report(number, f"Modules are others than those that protect() found: {names}.", _MODULES, "kinds")
        flags = self._state.take_flags_at_risk()
        if flags:
            self._session.findings.tell_carried(_short(flags))
        shared = self._state.take_buffers_over_params()
        if shared:
            found = (
                f"Buffers that were assigned after protect() share memory with parameters: {', '.join(_short(shared))}."
            )
            self._report(number, found, _SHARED, kind="shared")
        written = self._state.written_on_device
        if written:
            found = (
                f"Parameters on a device are written in a way that torch does not count: {', '.join(_short(written))}."
            )
            self._session.findings.report(Rule.UNCOUNTED_WRITES, found, step=number)
        exchanged = self._shards.take_exchanged(lambda: self._state.param_ids)
        if exchanged:
            names = ", ".join(_short(exchanged))
            self._report(number, f"Not the parameters, or not the memory, of fully_shard: {names}.", _SHARDS, "shards")
        self._tell_hooks(number)
        self._tell_groups(number)
        for optimizer in self._unprotected:
            found = f"{optimizer} steps protected parameters and was not passed to protect()."
            self._report(number, found, _OPTIMIZER, kind=optimizer)
        self._unprotected.clear()

    def _tell_hooks(self, number: int) -> None:
        """A newcomer runs the first step in its rehearsal, so it has the hooks of that one."""
        if not is_due(number):
            return
        before, self._hooks = self._hooks, {name: _count_hooks(each) for name, each in self._modules()}
        changed = [name for name, count in self._hooks.items() if before and before.get(name, count) != count]
        if changed:
            names = ", ".join(_short(tuple(changed)))
            self._report(number, f"The hooks of modules are others than before: {names}.", _HOOKS, kind="hooks")

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        for index, module in enumerate(self._state.modules):
            for path, each in module.named_modules():
                yield f"{index}.{path}" if len(self._state.modules) > 1 else path or type(module).__name__, each

    def _tell_groups(self, number: int) -> None:
        """Tells of groups that were made late. Those of the first step are made by a newcomer's rehearsal too."""
        late = self._late_groups()
        self._groups = frozenset(self._session.groups.names) | (self._groups or frozenset())
        if late:
            self._is_irreplaceable = True
            found = f"Process groups were made in a step after the first: {', '.join(_short(tuple(late)))}."
            self._session.findings.report(Rule.LATE_GROUPS, found, step=number)

    def _late_groups(self) -> list[str]:
        return sorted(frozenset(self._session.groups.names) - self._groups) if self._groups is not None else []

    def _report(self, number: int, found: str, remedy: str, kind: str = "structure") -> None:
        self._session.findings.report(Rule.REPLACED_OBJECTS, found, remedy=remedy, step=number, kind=kind)

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if optimizer in self._known:
            return
        self._known.add(optimizer)
        if self._state.owns_params_of(optimizer) and not is_held(optimizer, self._state.holders):
            self._unprotected.append(f"{type(optimizer).__name__} over {_count(optimizer)} parameters")


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


def _count_hooks(module: nn.Module) -> int:
    """Counts the hooks of the script: libraries come and go with theirs."""
    return sum(1 for name in _OF_HOOKS for hook in getattr(module, name).values() if is_of_script(_file_of(hook)))


def _file_of(hook: Any) -> str:
    function = getattr(hook, "func", hook)
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return str(code.co_filename) if code is not None else _UNKNOWN


def _count(optimizer: Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)


def _short(names: tuple[str, ...]) -> list[str]:
    return [*names[:_NAMED], *([f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else [])]
