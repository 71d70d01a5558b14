"""Modes and plain attributes of modules.

`Attributes`: Plain attributes of modules that a script changes: dropout.p, bn.momentum, a temperature, a counter.

A newcomer has not run the steps that changed them. What differs from protect() belongs to the boundary record.
Values are plain if they cannot change in place: numbers, strings, bytes, None, and tuples of these.

A flag may say what a process has done: "the cache is built". Where a module has other objects beside its plain
attributes here than it had at the boundary, only its numbers are restored, and flags keep what they say about here.

Only the main thread may use it. A boundary at which nothing was changed costs a comparison of lists in C.

`capture_modes` and `restore_modes` capture the modes of parameters and modules: frozen or not, training or
evaluating, with or without a gradient.

A newcomer needs them, because it has not run the steps in which the script changed them. The contents of gradients
are not state, but their existence is: an optimizer moves a parameter whose gradient is zero, by momentum or weight
decay, and leaves a parameter without a gradient alone.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator
from functools import cache
from itertools import accumulate, chain, compress
from operator import itemgetter
from typing import Any, cast

import numpy as np
from torch import nn

from deadpool.snapshot.state.cures import is_off
from deadpool.snapshot.state.objects import ModuleTrees, Objects

_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None)))
_NUMBERS = frozenset((int, float, complex))
_OF_NUMPY = (np.number, np.bool_)
_CONTAINERS = frozenset((dict, list, set, OrderedDict, defaultdict, deque))
_OF_TORCH = frozenset(vars(nn.Module()))
_WRAPPERS = frozenset(("DistributedDataParallel", "FullyShardedDataParallel", "OptimizedModule"))
_FRAMEWORKS = frozenset(("accelerate", "deepspeed", "lightning", "megatron", "pytorch_lightning", "torchmetrics"))

_KIND = ""  # no attribute has this name

Path = tuple[str, str]
Change = tuple[dict[str, Any], list[str], dict[str, Any]]


class Attributes:
    """The plain attributes of all submodules, as they were at protect() and are now."""

    def __init__(self, trees: ModuleTrees) -> None:
        self._trees = trees
        self._paths: object = None
        self._modules: dict[Path, nn.Module] = {}
        self._first: dict[Path, dict[str, Any]] = {}
        self._first_objects: dict[Path, dict[str, Any]] = {}
        self._changes: dict[Path, Change] = {}
        self._getters: list[Callable[[dict[str, Any]], tuple[Any, ...]]] = []
        self._watched: list[dict[str, Any]] = []
        self._values: list[Any] = []
        self._flags: dict[Path, dict[str, Any]] | None = None  # as they were when they were told of last
        self._find_modules()

    def capture(self) -> list[Any]:
        """Returns for each module that is not what it was at protect(): its path, its changed attributes, those that it
        no longer has, and its other objects."""
        if is_off("D5"):
            return []
        if self._paths is not self._trees.paths:
            self._find_modules()
        for path in self._find_changed():
            self._look_at(path)
        return [[*path, *change] for path, change in self._changes.items()]

    def take_flags_at_risk(self) -> tuple[str, ...]:
        """Returns the flags that were changed since the last call and would not be restored, because the module has not
        the same other objects as at protect(). Call it after capture(), from the end of the first step on."""
        if self._flags is None:
            self._flags = {path: _flags(module) for path, module in self._modules.items()}
            return ()
        found = []
        for path, (_, _, objects) in self._changes.items():
            if objects != self._first_objects[path]:
                before, now = self._flags.get(path), _flags(self._modules[path])
                self._flags[path] = now
                found += [
                    _name(path, name)
                    for name, value in now.items()
                    if before is not None and not (name in before and _is_same(before[name], value))
                ]
        return tuple(found)

    def restore(self, stored: list[Any]) -> None:
        """Gives all modules the attributes that they had at the boundary."""
        if is_off("D5"):
            return
        if self._paths is not self._trees.paths:
            self._find_modules()
        changes = {(name, path): change for name, path, *change in stored}
        for path, module in self._modules.items():
            changed, missing, objects = changes.get(path, ({}, (), self._first_objects[path]))
            if objects.get(_KIND, _kind(module)) != _kind(module):
                continue  # those of another class that took its place in a later step
            wanted = {name: each for name, each in self._first[path].items() if name not in missing} | changed
            _set(module, wanted, everything=_objects(module) == objects)

    def _find_modules(self) -> None:
        """A module that is made after protect() is compared with what it was when it was found."""
        self._paths = self._trees.paths
        self._modules = {
            (name, path): module
            for name, paths in self._trees.paths.items()
            for path, module in paths.items()
            if not _is_wrapper(module)
        }
        for path, module in self._modules.items():
            if path not in self._first or self._first_objects[path][_KIND] != _kind(module):
                self._first[path], self._first_objects[path] = _plain(module), _objects(module)
        self._changes = {}
        self._dicts = [vars(module) for module in self._modules.values()]
        self._counts: list[int] = []

    def _find_changed(self) -> list[Path]:
        """Returns the modules with an attribute that is another object than at the last boundary."""
        try:
            values = list(chain.from_iterable(map(operator.call, self._getters, self._watched)))
        except KeyError:
            return self._watch_all()
        if list(map(len, self._dicts)) != self._counts:
            return self._watch_all()
        before, self._values = self._values, values
        if all(map(operator.is_, values, before)):
            return []
        changed = compress(range(len(values)), map(operator.is_not, values, before))
        return [self._watched_paths[index] for index in sorted({bisect_right(self._ends, at) for at in changed})]

    def _watch_all(self) -> list[Path]:
        """Remembers which attributes each module has. Most have few beside those of torch."""
        self._counts = list(map(len, self._dicts))
        names = {path: [name for name, _ in _attributes(module)] for path, module in self._modules.items()}
        self._watched_paths = [path for path, each in names.items() if each]
        self._watched = [vars(self._modules[path]) for path in self._watched_paths]
        self._getters = [itemgetter(*names[path], names[path][0]) for path in self._watched_paths]  # always a tuple
        self._ends = list(accumulate(len(names[path]) + 1 for path in self._watched_paths))
        self._values = list(chain.from_iterable(map(operator.call, self._getters, self._watched)))
        return list(self._modules)

    def _look_at(self, path: Path) -> None:
        first, now = self._first[path], _plain(self._modules[path])
        changed = {name: each for name, each in now.items() if name not in first or not _is_same(first[name], each)}
        missing = [name for name in first if name not in now]
        self._changes.pop(path, None)
        if changed or missing:
            self._changes[path] = (changed, missing, _objects(self._modules[path]))


def _name(path: Path, attribute: str) -> str:
    return ".".join(part for part in (*path, attribute) if part)


def _is_wrapper(module: nn.Module) -> bool:
    """The flags of wrappers say what a process has done, and their adapters know them."""
    kind = type(module)
    names = {each.__name__ for each in kind.__mro__}
    return not names.isdisjoint(_WRAPPERS) or kind.__module__.partition(".")[0] in _FRAMEWORKS


@cache
def _is_of_framework(kind: Hashable) -> bool:
    assert isinstance(kind, type)
    return any(each.__module__.partition(".")[0] in _FRAMEWORKS for each in kind.__mro__)


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Leaves out what torch and frameworks keep in a module for themselves."""
    hides = _is_of_framework(cast(Hashable, type(module)))
    for name, each in vars(module).items():
        if name not in _OF_TORCH and not (hides and name.startswith("_")):
            yield name, each


def _plain(module: nn.Module) -> dict[str, Any]:
    return {name: each for name, each in _attributes(module) if _is_plain(each)}


def _is_plain(value: Any) -> bool:
    """A product with a number of numpy is one of numpy's too."""
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return type(value) in _PLAIN or isinstance(value, _OF_NUMPY)


def _is_number(value: Any) -> bool:
    return type(value) in _NUMBERS or isinstance(value, np.number)


def _flags(module: nn.Module) -> dict[str, Any]:
    return {name: each for name, each in _plain(module).items() if not _is_number(each)}


def _kind(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _objects(module: nn.Module) -> dict[str, Any]:
    """Returns the class of the module, the types of its attributes that are not plain, and how much containers hold."""
    return {_KIND: _kind(module)} | {
        name: [type(each).__qualname__, len(each) if type(each) in _CONTAINERS else 0]
        for name, each in _attributes(module)
        if not _is_plain(each)
    }


def _is_same(one: Any, other: Any) -> bool:
    """NaN is the same as itself, 0.0 is not the same as -0.0, and 1 is neither 1.0 nor True."""
    if type(one) is tuple and type(other) is tuple:
        return len(one) == len(other) and all(map(_is_same, one, other))
    return one is other or (type(one) is type(other) and repr(one) == repr(other))


def _set(module: nn.Module, wanted: dict[str, Any], *, everything: bool) -> None:
    live = vars(module)
    for name, value in wanted.items():
        if everything or _is_number(value):
            live[name] = value
    if everything:
        for name in _plain(module).keys() - wanted.keys():
            del live[name]


Modes = dict[str, Any]


def capture_modes(objects: Objects, trees: ModuleTrees, with_gradient: list[int]) -> Modes:
    """Names parameters by their index among the protected ones, and modules by their path."""
    params = objects.params.values()
    return {
        "frozen": [index for index, param in enumerate(params) if not param.requires_grad],
        "with_gradient": with_gradient,
        "evaluating": {
            name: [path for path, module in modules.items() if not module.training]
            for name, modules in trees.paths.items()
        },
    }


def restore_modes(objects: Objects, trees: ModuleTrees, modes: Modes) -> None:
    frozen = set(modes["frozen"])
    for index, param in enumerate(objects.params.values()):
        if param.requires_grad is (index in frozen):
            param.requires_grad_(index not in frozen)
    for name, paths in modes["evaluating"].items():
        evaluating = set(paths)
        for path, module in trees.paths[name].items():
            module.training = path not in evaluating
