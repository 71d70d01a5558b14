"""Restores parameters and optimizer state that overlap themselves, such as `x.expand(...)`: torch refuses to write into
memory that several elements share. So they are loaded into memory apart, and from there each shared element once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from deadpool.snapshot.record.tensors import dense_part, integer_view, local_part, set_local_part
from deadpool.snapshot.state.objects import Key


@dataclass(frozen=True, slots=True, eq=False)
class LoadedApart:
    target: Tensor
    loaded: Tensor

    def write(self) -> None:
        dense = dense_part(local_part(self.target))
        dense.copy_(self.loaded[tuple(map(slice, dense.shape))])

    def is_written(self) -> bool:
        return integer_view(local_part(self.target)).equal(integer_view(self.loaded))


def memory_to_load(targets: Mapping[Key, Tensor]) -> tuple[dict[Key, Tensor], list[LoadedApart]]:
    """Returns the memory that each target is loaded into, and those whose memory is not their own. Expanded buffers are
    stored without their repetitions."""
    memory = {key: local_part(target) for key, target in targets.items()}
    apart: list[LoadedApart] = []
    for key, local in memory.items():
        dense = dense_part(local)
        if key[0] == "buffer":
            memory[key] = dense
        elif dense is not local:
            memory[key] = torch.empty(local.shape, dtype=local.dtype, device=local.device)
            apart.append(LoadedApart(targets[key], memory[key]))
    return memory, apart


def write_apart(apart: Iterable[LoadedApart]) -> None:
    """What cannot be written where it lies keeps the memory that it was loaded into: it was not expanded when it was
    stored, or shares its elements with one of another value."""
    apart = list(apart)
    with torch.no_grad():
        for each in apart:
            each.write()
        for each in apart:
            if not each.is_written():
                set_local_part(each.target, each.loaded)
