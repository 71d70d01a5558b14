"""Whether the tensors of the bulk are still the ones a plan was made for: identities, addresses and shapes in one pass.

Asked at every step boundary, so written for speed: lists compared in C, no object made per tensor. It notices whatever
the full walk would notice (bulk.find_live): another tensor in a place, a key more or less, other memory under a tensor,
another shape.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Any

from torch import Tensor

from deadpool.snapshot.objects import ProtectedOptimizer
from deadpool.snapshot.tensors import is_dtensor, local_address

_data_ptr = Tensor.data_ptr
_shape = operator.attrgetter("shape")


@dataclass(frozen=True, slots=True, eq=False)
class _States:
    """Of one optimizer: the keys of each parameter's state, all values in order, and which of those are tensors."""

    holders: list[Any]
    keys: list[tuple[Any, ...]]
    values: list[Any]
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Census:
    params: list[Tensor]
    states: dict[str, _States]
    are_tensors: dict[str, list[bool]]
    tensors: list[Tensor]
    spread: list[bool]  # which of the tensors are DTensors
    addresses: list[int]
    shapes: list[Any]

    @classmethod
    def take(cls, params: list[Tensor], optimizers: Mapping[str, ProtectedOptimizer]) -> Census:
        states = {name: _states_of(optimizer) for name, optimizer in optimizers.items()}
        masks = {name: [isinstance(value, Tensor) for value in each.values] for name, each in states.items()}
        tensors = [*params, *(value for name, each in states.items() for value in compress(each.values, masks[name]))]
        spread = [is_dtensor(tensor) for tensor in tensors]
        return cls(params, states, masks, tensors, spread, _addresses(tensors, spread), list(map(_shape, tensors)))

    def holds(self, params: list[Tensor], optimizers: Mapping[str, ProtectedOptimizer]) -> bool:
        tensors = list(params)
        for name, optimizer in optimizers.items():
            before, now, mask = self.states[name], _states_of(optimizer), self.are_tensors[name]
            if not _alike(before, now):
                return False
            if not all(mask) and any(
                isinstance(value, Tensor) for value in compress(now.values, map(operator.not_, mask))
            ):
                return False
            tensors.extend(compress(now.values, mask))
        return (
            len(tensors) == len(self.tensors)
            and all(map(operator.is_, tensors, self.tensors))
            and list(map(_shape, tensors)) == self.shapes
            and _addresses(tensors, self.spread) == self.addresses
        )


def _alike(before: _States, now: _States) -> bool:
    return (
        before.count == now.count
        and len(before.holders) == len(now.holders)
        and all(map(operator.is_, before.holders, now.holders))
        and before.keys == now.keys
    )


def _states_of(optimizer: ProtectedOptimizer) -> _States:
    """By parameter, in the order of the groups. None for a parameter without state."""
    states = optimizer.inner.state
    params = optimizer.params
    found = [states.get(param) for param in params]
    values: list[Any] = []
    for state in found:
        if state is not None:
            values.extend(state.values())
    keys = [() if state is None else tuple(state) for state in found]
    holders = [param if state is not None else None for param, state in zip(params, found, strict=True)]
    return _States(holders, keys, values, len(states))


def _addresses(tensors: list[Tensor], spread: Iterable[bool]) -> list[int]:
    if not any(spread):
        return list(map(_data_ptr, tensors))
    return [
        local_address(each) if is_spread else each.data_ptr() for each, is_spread in zip(tensors, spread, strict=True)
    ]
