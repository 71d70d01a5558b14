"""Which tensors fully_shard (FSDP2) holds for parameters: it gathers from memory of its own, `_sharded_param_data`, and
puts parameters of its own into the modules after each forward pass.

A script that puts another parameter into a module, or other memory into one, has an effect on what optimizer and
snapshot see, and none on what the next forward pass computes with, or one that no other process has. So it is named,
and what a step that was cut off has put into a parameter is taken out again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (Tensor, nn.Parameter)
_shard = operator.attrgetter("sharded_param._local_tensor")


def put_shards_back(group: Any) -> None:
    for param in group.fsdp_params:
        if _is_apart(param):
            size, stride = param.sharded_size, param.contiguous_sharded_stride
            own = torch.as_strided(param._sharded_param_data, size, stride)
            param.sharded_param._local_tensor = own


class ShardWatch:
    """Looks at the parameters of all groups of FSDP2. Only lists are compared where nothing has changed."""

    def __init__(self, groups: Iterable[Any]) -> None:
        self._groups = list(groups)
        self._params = [param for group in self._groups for param in group.fsdp_params]
        self._seen: list[Any] = []

    def take_exchanged(self, protected: Callable[[], Set[int]]) -> tuple[str, ...]:
        """Returns the names of parameters that are not those that fully_shard gathers, or that are none of the
        `protected` ones, by id; () also if nothing has changed since the last call."""
        seen, self._seen = self._seen, self._look()
        return () if seen == self._seen else tuple(self._exchanged(protected()))

    def _look(self) -> list[Any]:
        shards = list(map(_shard, self._params))
        return [
            *(id(param.sharded_param) for param in self._params),
            *map(id, map(_registered, self._params)),
            *(each.data_ptr() for each in shards if type(each) in _PLAIN),
        ]

    def _exchanged(self, protected: Set[int]) -> Iterator[str]:
        for group in self._groups:
            if not group._reset_sharded_params:
                continue  # the first forward pass takes what it finds
            for param in group.fsdp_params:
                is_other = param.sharded_state.name == "SHARDED" and _registered(param) is not param.sharded_param
                if is_other or id(param.sharded_param) not in protected or _is_apart(param):
                    yield param._param_fqn or param._module_info.param_name


def _registered(param: Any) -> Tensor | None:
    info = param._module_info
    found: Tensor | None = info.module._parameters.get(info.param_name)
    return found


def _is_apart(param: Any) -> bool:
    """Whether the parameter has other memory than fully_shard gathers from."""
    shard, own = _shard(param), param._sharded_param_data
    if type(shard) not in _PLAIN or type(own) not in _PLAIN or not shard.numel():
        return False
    return bool(shard.untyped_storage().data_ptr() != own.untyped_storage().data_ptr())
