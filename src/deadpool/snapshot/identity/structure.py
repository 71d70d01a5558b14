"""Follows which tensor is which parameter: a script may put another one in its place, in any step.

A codebook that a forward pass assigns anew, a head that is exchanged for a new one of the same shape: from then on the
new tensor is the parameter, and snapshots have to contain it. So at each boundary the modules' own dictionaries are
compared with those of the boundary before, by identity and without an object per tensor, and parameters are collected
anew where they differ. A step that was cut off may have exchanged some too: a survivor gets those of the boundary back.

Parameters of FSDP2 are not followed: it puts whole ones in their places during a forward pass, and keeps shards of its
own (trainer/adapters/fsdp2.py). Other DTensors are parameters like any.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from deadpool.snapshot.record.layout import SlotLayout
from deadpool.snapshot.record.placement import clone, dtensor_spec_of
from deadpool.snapshot.record.tensors import is_dtensor
from deadpool.snapshot.state import cures
from deadpool.snapshot.state.objects import Key, Objects, ProtectedOptimizer, collect_params, describe

_children_of = operator.attrgetter("_modules")
_params_of = operator.attrgetter("_parameters")
_params_in = operator.itemgetter("params")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureChange:
    """How the parameters differ from those that protect() found, by name. A newcomer has those of protect()."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    reshaped: tuple[str, ...]
    regrouped: tuple[str, ...]  # optimizers that step others, or have them in other groups
    exchanged: tuple[str, ...] = ()  # modules of another class, or that are there now or not any more


class _Moment:
    """The submodules, parameters and parameter groups of one moment."""

    def __init__(self, objects: Objects, sharded: frozenset[int] = frozenset()) -> None:
        """`sharded`: ids of modules that had shards of FSDP2 for parameters before, and may have gathered ones now."""
        found = {id(each): each for module in objects.modules.values() for each in module.modules()}
        self.modules = list(found.values())
        gathering = {id(each): each for root in self.modules if _is_gathering(root) for each in root.modules()}
        self.shards = {
            id(param) for each in gathering.values() for param in filter(_is_sharded, each._parameters.values())
        }
        self.sharded = sharded | {
            key for key, each in gathering.items() if any(map(_is_sharded, each._parameters.values()))
        }
        self.owners = [each for each in self.modules if id(each) not in self.sharded]
        dicts = self._dicts()
        self.names: list[str] = list(chain.from_iterable(dicts))
        self.values: list[Any] = list(chain.from_iterable(map(dict.values, dicts)))
        self.stepped = _stepped(objects.optimizers.values())
        self._children = [dict(each._modules) for each in self.modules]
        self._params = [dict(each._parameters) for each in self.owners]
        self._groups = {name: _groups_of(each) for name, each in objects.optimizers.items()}

    def _dicts(self) -> list[dict[str, Any]]:
        return [*map(_children_of, self.modules), *map(_params_of, self.owners)]

    def has_other_names(self) -> bool:
        return list(chain.from_iterable(self._dicts())) != self.names

    def still_holds(self, objects: Objects) -> bool:
        dicts = self._dicts()
        return (
            _same(list(chain.from_iterable(map(dict.values, dicts))), self.values)
            and list(chain.from_iterable(dicts)) == self.names
            and _same(_stepped(objects.optimizers.values()), self.stepped)
        )

    def put_back(self, objects: Objects) -> None:
        for module, children in zip(self.modules, self._children, strict=True):
            _refill(module._modules, children)
        for module, params in zip(self.owners, self._params, strict=True):
            _refill(module._parameters, params)
        for name, optimizer in objects.optimizers.items():
            _refill_groups(optimizer.outer.param_groups, self._groups[name])
            _drop_states_of_others(optimizer)


class LiveStructure:
    """Keeps the parameters of `objects` those that the modules and optimizers have. Only the main thread may use it."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._boundary = _Moment(objects)
        self.shards = frozenset(self._boundary.shards)
        """The ids of the parameters of FSDP2."""
        self._first: _Moment | None = self._boundary  # that of protect(), until it is of no use any more
        self._first_shapes = {key: _shape(each) for key, each in objects.params.items()}
        self._first_counts = {name: len(_stepped([each])) for name, each in objects.optimizers.items()}
        self._first_groups = self._names_in_groups()
        self._first_types = self._types()
        self._told = StructureChange(added=(), removed=(), reshaped=(), regrouped=())

    def follow(self) -> dict[int, Tensor] | None:
        """Takes the structure of this moment for that of the boundary. Returns the parameters that are none any more,
        by id, or None if nothing was exchanged."""
        if cures.is_off("D4") or self._boundary.still_holds(self._objects):
            return None
        return self._collect()

    @property
    def is_that_of_boundary(self) -> bool:
        return cures.is_off("D4") or self._boundary.still_holds(self._objects)

    @property
    def has_other_names(self) -> bool:
        """Returns whether modules got or lost a parameter or submodule since the boundary."""
        return not cures.is_off("D4") and self._boundary.has_other_names()

    def put_back(self) -> None:
        """Undoes what a step that was cut off has exchanged."""
        if not self.is_that_of_boundary:
            self._boundary.put_back(self._objects)

    def match(self, layout: SlotLayout) -> dict[int, Tensor] | None:
        """Makes parameters distinct tensors that are distinct in the snapshot: there a module got a new one, while an
        optimizer kept the old one. Here this step was not run. Returns as follow() does."""
        stored = {entry.key for entry in layout.entries if entry.key[0] == "param"}
        if cures.is_off("D4") or stored == self._objects.params.keys():
            return None
        gone: dict[int, Tensor] = {}
        if self._first is not None:  # dry steps may have exchanged what was not exchanged at this version
            self._first.put_back(self._objects)
            gone |= self._collect()
        for key in sorted(stored - self._objects.params.keys(), key=describe):
            self._separate(key, stored)
        return gone | self._collect()

    def objects_now(self) -> Objects:
        """Returns the objects with the parameters of this moment, which may be in the middle of a step."""
        if self.is_that_of_boundary:
            return self._objects
        now = collect_params(self._objects.modules, self._objects.optimizers, self._known_shards())
        return replace(self._objects, params=now)

    def forget_first(self) -> None:
        """No dry steps have to be undone: the structure of protect() need not be kept alive."""
        self._first = None

    def take_change(self) -> StructureChange | None:
        """Returns how names and shapes differ from those at protect(), if it was not told yet."""
        here = self._objects.params
        change = StructureChange(
            added=tuple(describe(key) for key in here if key not in self._first_shapes and not self._was_stepped(key)),
            removed=tuple(describe(key) for key in self._first_shapes if key not in here),
            reshaped=tuple(
                describe(key) for key, each in here.items() if self._first_shapes.get(key, _shape(each)) != _shape(each)
            ),
            regrouped=tuple(
                f"{name}.param_groups"
                for name, each in self._objects.optimizers.items()
                if len(_stepped([each])) != self._first_counts[name] or self._has_moved_params(name)
            ),
            exchanged=self._exchanged_modules(),
        )
        told, self._told = self._told, change
        return None if change == told else change

    def _types(self) -> dict[str, type]:
        return {
            f"{name}.{path}".rstrip("."): type(each)
            for name, module in self._objects.modules.items()
            for path, each in module.named_modules()
        }

    def _exchanged_modules(self) -> tuple[str, ...]:
        now, first = self._types(), self._first_types
        return tuple(path for path in {**first, **now} if now.get(path) is not first.get(path))

    def _names_in_groups(self) -> dict[str, list[list[Key | None]]]:
        """None: an optimizer keeps a parameter that no module has any more, or never had."""
        keys = {id(each): key for key, each in self._objects.params.items() if _index_in_groups(key) is None}
        return {
            name: [[keys.get(id(param)) for param in group["params"]] for group in optimizer.outer.param_groups]
            for name, optimizer in self._objects.optimizers.items()
        }

    def _has_moved_params(self, name: str) -> bool:
        first, now = self._first_groups[name], self._names_in_groups()[name]
        if list(map(len, first)) != list(map(len, now)):
            return True
        pairs = zip(chain.from_iterable(first), chain.from_iterable(now), strict=True)
        return any(one != other for one, other in pairs if one is not None and other is not None)

    def _was_stepped(self, key: Key) -> bool:
        """Returns whether an optimizer had a parameter of this name at protect(): a newcomer can tell it apart from the
        one that a module has now."""
        index = _index_in_groups(key)
        return index is not None and index < self._first_counts.get(key[1], 0)

    def _collect(self) -> dict[int, Tensor]:
        known = dict(self._objects.params)
        found = collect_params(self._objects.modules, self._objects.optimizers, self._known_shards())
        self._objects.params.clear()
        self._objects.params.update(found)
        self._boundary = _Moment(self._objects, self._boundary.sharded)
        here = {id(each) for each in found.values()}
        return {id(each): each for each in known.values() if id(each) not in here}

    def _known_shards(self) -> dict[Key, Tensor]:
        return {key: each for key, each in self._objects.params.items() if id(each) in self.shards}

    def _separate(self, key: Key, stored: set[Key]) -> None:
        """Gives the modules a new parameter where they have the one that this optimizer's key names."""
        param = _param_in_groups(self._objects.optimizers, key)
        names = {id(each): name for name, each in self._objects.params.items()}
        if param is None or names.get(id(param)) not in stored:
            return  # the snapshot is of other parameters, which the caller finds
        separate = nn.Parameter(clone(param, describe(key)), requires_grad=param.requires_grad)
        for module in self._boundary.owners:
            for name, each in module._parameters.items():
                if each is param:
                    module._parameters[name] = separate


def _shape(param: Tensor) -> object:
    """A parameter of a lazy module has none yet, and is refused when its plan is made."""
    if is_lazy(param):
        return ()
    return tuple(param.shape), param.dtype, dtensor_spec_of(param, "parameter")


def _is_sharded(param: Tensor | None) -> bool:
    return param is not None and is_dtensor(param)


def _is_gathering(module: nn.Module) -> bool:
    """Does not import FSDP2: if it was not imported, no module was sharded."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, getattr(fsdp, "FSDPModule", ()))


def _same(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _stepped(optimizers: Iterable[ProtectedOptimizer]) -> list[Tensor]:
    groups = chain.from_iterable(each.outer.param_groups for each in optimizers)
    return list(chain.from_iterable(map(_params_in, groups)))


def _groups_of(optimizer: ProtectedOptimizer) -> list[tuple[dict[str, Any], list[Tensor]]]:
    return [(group, list(group["params"])) for group in optimizer.outer.param_groups]


def _refill(live: dict[str, Any], before: dict[str, Any]) -> None:
    if list(live) == list(before) and all(map(operator.is_, live.values(), before.values())):
        return
    live.clear()
    live.update(before)


def _refill_groups(live: list[dict[str, Any]], before: list[tuple[dict[str, Any], list[Tensor]]]) -> None:
    """Groups that were added are removed. The values of hyperparameters are not restored here."""
    del live[len(before) :]
    live.extend(group for group, _ in before[len(live) :])
    for group, (_, params) in zip(live, before, strict=True):
        if not _same(group["params"], params):
            group["params"][:] = params


def _drop_states_of_others(optimizer: ProtectedOptimizer) -> None:
    """Drops states of parameters that are not the optimizer's. At a boundary there are none."""
    stepped = {id(each) for each in optimizer.params}
    for key in [key for key in optimizer.inner.state if isinstance(key, Tensor) and id(key) not in stepped]:
        del optimizer.inner.state[key]


def _index_in_groups(key: Key) -> int | None:
    """Returns which of the parameters of its optimizer a key names; None for one of a module."""
    _, _, name, _ = key
    number = str(name).removeprefix("params.")
    return int(number) if number != name and number.isdigit() else None


def _param_in_groups(optimizers: Mapping[str, ProtectedOptimizer], key: Key) -> Tensor | None:
    optimizer, index = optimizers.get(key[1]), _index_in_groups(key)
    params = _stepped([optimizer]) if optimizer is not None else []
    return params[index] if index is not None and index < len(params) else None
