"""What objects that a script may keep in variables hold, in short: modules, optimizers, schedulers, generators.

Two fingerprints of one object are compared. A generator that a script seeds anew in each step, from its number, differs
too and is exact: so it counts only if the later fingerprint follows from the earlier one by drawing numbers. A module
or an optimizer whose tensors were exchanged is not compared with what it was.
"""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from deadpool.snapshot.record.tensors import local_part

_TENSORS, _ELEMENTS = 8, 8  # whose elements are looked at: writes through `.data` are not counted by torch
_TURNS = 64  # of 624 numbers each, that a Mersenne twister may have drawn between two looks
_PLAIN = (bool, int, float, str, type(None))
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_KINDS = (nn.Module, Optimizer, LRScheduler, torch.amp.GradScaler, *_GENERATORS)


class Fingerprint(NamedTuple):
    """`anchor`: if it differs, nothing is said about the content."""

    anchor: object
    content: object


def is_known_kind(value: Any) -> bool:
    return _is_known(type(value))  # type: ignore[arg-type]


@functools.lru_cache(maxsize=4096)
def _is_known(kind: type) -> bool:
    """Kept, because classes of torch's have slow checks of their own."""
    return issubclass(kind, _KINDS) and not issubclass(kind, type)


def fingerprint(value: Any, is_protected: Callable[[Any], bool]) -> Fingerprint:
    """`is_protected` modules and parameters inside of the value are left out."""
    if isinstance(value, (nn.Module, Optimizer)):
        tensors = list(_tensors_of(value, is_protected))
        plain = _plain_state(value) if isinstance(value, Optimizer) else ()
        return Fingerprint([id(each) for each in tensors], (_counts(tensors), _elements(tensors), plain))
    if isinstance(value, LRScheduler):
        return Fingerprint((), repr({name: each for name, each in vars(value).items() if _is_plain(each)}))
    if isinstance(value, torch.amp.GradScaler):
        return Fingerprint(value.is_enabled(), repr(value.state_dict()))
    if isinstance(value, torch.Generator):
        return Fingerprint((str(value.device), value.initial_seed()), zlib.crc32(bytes(value.get_state().tolist())))
    return _of_generator(value)


def has_moved_on(before: Fingerprint, now: Fingerprint) -> bool:
    if isinstance(before.content, _Twister) and isinstance(now.content, _Twister):
        return before.anchor == now.anchor and before.content.leads_to(now.content)
    return before.anchor == now.anchor and before.content != now.content


def _tensors_of(value: nn.Module | Optimizer, is_protected: Callable[[Any], bool]) -> Iterator[Tensor]:
    if isinstance(value, Optimizer):
        if any(is_protected(param) for group in value.param_groups for param in group["params"]):
            return  # trainer/structure_news.py names it
        for state in value.state.values():
            yield from (each for each in state.values() if isinstance(each, Tensor))
        return
    for module in value.modules():
        if not is_protected(module):
            own = [*module._parameters.values(), *module._buffers.values()]
            yield from (each for each in own if each is not None and not is_protected(each))


def _plain_state(optimizer: Optimizer) -> list[str]:
    return [repr([each for each in state.values() if _is_plain(each)]) for state in optimizer.state.values()]


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(isinstance(each, _PLAIN) for each in value)
    return isinstance(value, _PLAIN)


def _counts(tensors: list[Tensor]) -> list[int]:
    return [0 if each.is_inference() else each._version for each in tensors]


def _elements(tensors: list[Tensor]) -> list[list[Any]]:
    """Waits for a device, in the few steps in which a guard looks."""
    return [sample_of(each) for each in tensors[:: max(1, len(tensors) // _TENSORS)][:_TENSORS]]


def sample_of(tensor: Tensor) -> list[Any]:
    if tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.numel() == 0:
        return []
    with torch.no_grad():
        flat = local_part(tensor)
        step = max(1, flat.numel() // _ELEMENTS)
        taken = flat.reshape(-1)[::step] if flat.is_contiguous() else flat.flatten()[::step]
        return list(islice(map(repr, taken.tolist()), 2 * _ELEMENTS))


class _Twister(NamedTuple):
    """The state of a Mersenne twister: 624 words, and how many of them are drawn."""

    words: tuple[int, ...]
    drawn: int

    def leads_to(self, other: _Twister) -> bool:
        """Whether drawing numbers leads from this state to that one, without a new seed."""
        if self.words == other.words:
            return other.drawn > self.drawn
        walker = random.Random()
        walker.setstate((3, (*self.words, len(self.words)), None))
        for _ in range(_TURNS):
            walker.getrandbits(32)  # makes the next words
            words = walker.getstate()[1][:-1]
            if words == other.words:
                return True
            walker.setstate((3, (*words, len(words)), None))
        return False


def _of_generator(value: Any) -> Fingerprint:
    if isinstance(value, random.Random):
        try:
            state: Any = value.getstate()[1]
        except NotImplementedError:  # random.SystemRandom has none
            return Fingerprint((), ())
        is_twister = isinstance(state, tuple) and len(state) == 625
        return Fingerprint((), _Twister(state[:-1], state[-1]) if is_twister else repr(state))
    bits: Any = value.bit_generator if isinstance(value, np.random.Generator) else value._bit_generator
    state = bits.state
    inner = state.get("state")
    if state["bit_generator"] == "MT19937":
        return Fingerprint("MT19937", _Twister(tuple(map(int, inner["key"])), int(inner["pos"])))
    anchor = {name: inner[name] for name in ("inc", "key") if isinstance(inner, dict) and name in inner}
    return Fingerprint(f"{state['bit_generator']} {anchor!r}", repr(state))
