"""Places beside variables in which a script may keep what its steps change.

`module_places`: what modules of the script's own classes hold that no snapshot has: lists, dictionaries, arrays, plain
tensors and objects. Hooks of any module, and attributes of its parameters.

`process_settings`: what applies to the whole process: settings of torch, the environment, the working directory.

`SavedValues` tells which values of a protected object its own state_dict() does not have.
"""

from __future__ import annotations

import contextlib
import functools
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from deadpool.snapshot.state.own_state import capture_added, modules_that_add
from deadpool.trainer.guards.carried_gradients import is_of_script, is_own_class
from deadpool.trainer.guards.fingerprints import sample_of
from deadpool.trainer.guards.rebound import OF_MODULES
from deadpool.trainer.guards.script_objects import CONTAINERS, PLAIN, attributes_of, numbers_in

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_HOOKS_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_DEPTH = 4
_MOST_ITEMS = 64
_LONGEST = 64  # of bytes and strings: longer ones may have anything in them
_SET_BY_OTHERS = ("DEADPOOL_", "MASTER_", "TORCH", "NCCL_", "CUDA_", "RANK", "LOCAL_", "GROUP_", "WORLD_SIZE")


def module_places(name: str, module: nn.Module) -> Iterator[tuple[str, Any, Any]]:
    """Yields the name, the owner and the value of each place."""
    if is_own_class(type(module)) and not _saves_more(module):
        for key, each in vars(module).items():
            if key not in OF_MODULES and not _is_in_snapshot(each):
                yield f"{name}.{key}", module, each
    for hook in _hooks_of(module, _HOOKS):
        yield f"{name}:hook", module, hook
    for key, param in module._parameters.items():
        if param is None:
            continue
        for hook in _hooks_of(param, _HOOKS_OF_PARAMETERS):
            yield f"{name}.{key}:hook", param, hook
        for attribute, each in vars(param).items():
            if not attribute.startswith("_"):  # those are libraries'
                yield f"{name}.{key}.{attribute}", param, each


def _is_in_snapshot(value: Any) -> bool:
    """Snapshots have the plain attributes of modules (snapshot/state/attributes.py)."""
    if type(value) is tuple:
        return all(map(_is_in_snapshot, value))
    return type(value) in PLAIN or isinstance(value, (np.number, np.bool_))


def _saves_more(module: nn.Module) -> bool:
    """What it saves may be any of its attributes."""
    return type(module).get_extra_state is not nn.Module.get_extra_state or bool(modules_that_add({"": module}))


def _hooks_of(value: Any, kinds: tuple[str, ...]) -> Iterator[Any]:
    for kind in kinds:
        yield from filter(_is_of_script, list((getattr(value, kind, None) or {}).values()))


def _is_of_script(hook: Any) -> bool:
    inner = getattr(hook, "func", hook)
    inner = getattr(inner, "__func__", inner)
    if isinstance(inner, types.FunctionType):
        return is_of_script(inner.__code__.co_filename)
    return is_own_class(type(inner))


def process_settings() -> Iterator[tuple[str, object]]:
    yield "torch.get_default_dtype()", str(torch.get_default_dtype())
    yield "torch.get_default_device()", str(torch.get_default_device())
    yield "torch.get_num_threads()", torch.get_num_threads()
    yield "torch.is_grad_enabled()", torch.is_grad_enabled()
    yield "torch.are_deterministic_algorithms_enabled()", torch.are_deterministic_algorithms_enabled()
    yield "torch.backends.cudnn.benchmark", torch.backends.cudnn.benchmark
    with contextlib.suppress(OSError):  # the directory may be gone
        yield "os.getcwd()", os.getcwd()  # noqa: PTH109 (a string, as the script gets it)
    for name, each in list(os.environ.items()):
        if not name.startswith(_SET_BY_OTHERS):
            yield f"os.environ[{name}]", each


class SavedValues:
    """What a protected object of the script, or an optimizer of its own, holds beside what its state_dict() has. Only
    the shapes and some elements of tensors are compared: a state may have copies."""

    def __init__(self, holder: Any, is_protected: Callable[[Tensor], bool]) -> None:
        self._is_protected = is_protected
        self._left_out = _of_optimizers() if isinstance(holder, Optimizer) else frozenset[str]()
        self._attributes = {
            key: each for key, each in attributes_of(holder).items() if key not in self._left_out and _may_change(each)
        }
        self._holder = holder

    def unsaved(self) -> Iterator[tuple[str, Any, object]]:
        """Yields the attributes of which the state says nothing: name, value, and what tells whether it was changed."""
        if not self._attributes:
            return
        is_optimizer = isinstance(self._holder, Optimizer)
        saved = capture_added(self._holder) if is_optimizer else self._holder.state_dict()
        if _is_opaque(saved, _DEPTH):
            return
        numbers, tensors = set(numbers_in(saved, _DEPTH)), set(_samples(saved, _DEPTH))
        for key, each in self._attributes.items():
            found = [*numbers_in(each, _DEPTH)] if not isinstance(each, Tensor) else []
            samples = [*_samples(each, _DEPTH, self._is_protected)]
            if not numbers.issuperset(found) or not tensors.issuperset(samples):
                yield key, each, (len(found), repr(found[-_MOST_ITEMS:]), samples)


@functools.cache
def _of_optimizers() -> frozenset[str]:
    """Attributes of each optimizer that torch makes itself."""
    return frozenset(vars(Optimizer([torch.zeros(1)], {})))


def _may_change(value: Any) -> bool:
    return type(value) in (int, float) or isinstance(value, (Tensor, *CONTAINERS))


def _samples(value: Any, depth: int, is_left_out: Callable[[Tensor], bool] = lambda _: False) -> Iterator[object]:
    """Tensors of one element are numbers (script_objects.py)."""
    if isinstance(value, Tensor):
        if value.numel() != 1 and not is_left_out(value):
            yield str(value.dtype), tuple(value.shape), tuple(sample_of(value))
    elif depth and isinstance(value, CONTAINERS):
        items = list(value.values() if isinstance(value, dict) else value)
        for each in items[-_MOST_ITEMS:]:
            yield from _samples(each, depth - 1, is_left_out)


def _is_opaque(value: Any, depth: int) -> bool:
    """Whether a state may have anything in it: arrays, long strings and bytes, objects."""
    if isinstance(value, (str, bytes)):
        return len(value) > _LONGEST
    if isinstance(value, (*PLAIN, Tensor)):
        return False
    if isinstance(value, CONTAINERS):
        items = list(value.values() if isinstance(value, dict) else value)
        return not depth or any(_is_opaque(each, depth - 1) for each in items[:_MOST_ITEMS])
    return True
