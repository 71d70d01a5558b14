"""Gives parameters and optimizer state the tensors and the memory back that they had at the boundary.

A script may put other memory under a parameter for a while, as in `param.data = average` for an evaluation, or another
tensor into the state of an optimizer. If its step is cut off then, a restore must write into what lay there at the
boundary: what lies there now belongs to something else. DTensors need nothing: an assignment to `.data` of one does not
change its local part.
"""

from __future__ import annotations

from torch import Tensor

from deadpool.snapshot import cures
from deadpool.snapshot.bulk import CopyPlan, LiveTensor
from deadpool.snapshot.objects import Objects
from deadpool.snapshot.tensors import is_dtensor


def put_memory_back(plan: CopyPlan, objects: Objects) -> None:
    """Call it after frameworks were reset, which put data of their own under parameters during a forward pass."""
    if cures.is_off("D2"):
        return
    for item in plan.live:
        if item.key[0] == "state":
            _put_state_back(item, objects)
        if item.key[0] != "buffer" and not is_dtensor(item.tensor):
            _bind(item.tensor, plan.locals[item.key])


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
