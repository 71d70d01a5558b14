"""Checks whether a copy plan is still valid: whether the tensors have the same identities, addresses and shapes.

It runs at every step boundary, so it is written for speed: it compares lists in C and makes no object per tensor. It
notices everything that a full scan (bulk.find_live) would notice: another tensor in a place, an added or removed key,
other memory under a tensor, another shape.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Any

from torch import Tensor

from deadpool.snapshot.record.tensors import is_dtensor, local_address
from deadpool.snapshot.state.objects import ProtectedOptimizer

_data_ptr = Tensor.data_ptr
_shape = operator.attrgetter("shape")


@dataclass(frozen=True, slots=True, eq=False)
class _States:
    """The state of one optimizer: the keys of each parameter's state, and all values in order."""

    holders: list[Any]
    keys: list[tuple[Any, ...]]
    values: list[Any]
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class PlanCheck:
    """The tensors that a plan was made for."""

    params: list[Tensor]
    states: dict[str, _States]
    are_tensors: dict[str, list[bool]]
    tensors: list[Tensor]
    are_dtensors: list[bool]  # which of the tensors are DTensors
    addresses: list[int]
    shapes: list[Any]

    @classmethod
    def of(cls, params: list[Tensor], optimizers: Mapping[str, ProtectedOptimizer]) -> PlanCheck:
        states = {name: _states_of(optimizer) for name, optimizer in optimizers.items()}
        masks = {name: [isinstance(value, Tensor) for value in each.values] for name, each in states.items()}
        tensors = [*params, *(value for name, each in states.items() for value in compress(each.values, masks[name]))]
        are_dtensors = [is_dtensor(tensor) for tensor in tensors]
        return cls(
            params, states, masks, tensors, are_dtensors, _addresses(tensors, are_dtensors), list(map(_shape, tensors))
        )

    def still_holds(self, params: list[Tensor], optimizers: Mapping[str, ProtectedOptimizer]) -> bool:
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
            and _addresses(tensors, self.are_dtensors) == self.addresses
        )


def _alike(before: _States, now: _States) -> bool:
    return (
        before.count == now.count
        and len(before.holders) == len(now.holders)
        and all(map(operator.is_, before.holders, now.holders))
        and before.keys == now.keys
    )


def _states_of(optimizer: ProtectedOptimizer) -> _States:
    """Collects state by parameter, in the order of the groups."""
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


def _addresses(tensors: list[Tensor], are_dtensors: Iterable[bool]) -> list[int]:
    if not any(are_dtensors):
        return list(map(_data_ptr, tensors))
    return [
        local_address(each) if is_dtensor_ else each.data_ptr()
        for each, is_dtensor_ in zip(tensors, are_dtensors, strict=True)
    ]
