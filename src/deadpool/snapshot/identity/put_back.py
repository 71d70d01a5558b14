"""Gives parameters and optimizer state the tensors and the memory back that they had at the boundary.

A script may put other memory under a parameter for a while, as in `param.data = average` for an evaluation, or another
tensor into the state of an optimizer. If its step is cut off then, a restore must write into what lay there at the
boundary: what lies there now belongs to something else. A DTensor has its memory in another tensor inside. Under those
of FSDP2 nothing is put here: it knows where its shards lie (trainer/adapters/fsdp2.py).
"""

from __future__ import annotations

from collections.abc import Set

from torch import Tensor

from deadpool.snapshot.copying.bulk import CopyPlan, LiveTensor
from deadpool.snapshot.record.tensors import set_local_part, shard_in
from deadpool.snapshot.state import cures
from deadpool.snapshot.state.objects import Objects


def put_memory_back(plan: CopyPlan, objects: Objects, without: Set[int]) -> None:
    """Call it after frameworks were reset, which put data of their own under parameters during a forward pass. Tensors
    whose ids are in `without` are left as they are."""
    if cures.is_off("D2"):
        return
    for item in plan.live:
        if item.key[0] == "state":
            _put_state_back(item, objects)
        if item.key[0] == "buffer" or id(item.tensor) in without:
            continue
        shard = plan.shards.get(item.key)
        if shard is not None and shard_in(item.tensor) is not shard:
            set_local_part(item.tensor, shard)
        _bind(item.tensor if shard is None else shard, plan.locals[item.key])


def _bind(tensor: Tensor, memory: Tensor) -> None:
    here, there = tensor.data, memory
    same = (here.data_ptr(), here.shape, here.stride(), here.dtype) == (
        *(there.data_ptr(), there.shape),
        *(there.stride(), there.dtype),
    )
    if not same:
        tensor.data = memory


def _put_state_back(item: LiveTensor, objects: Objects) -> None:
    _, name, _, key = item.key
    state = objects.optimizers[name].inner.state.setdefault(item.param, {})
    if state.get(key) is not item.tensor:
        state[key] = item.tensor
