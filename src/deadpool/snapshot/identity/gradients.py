"""Tensors that keep their identity over a recovery.

`GradientObjects` keeps the tensors that are the gradients of parameters, because a script may hold them too.

Flat gradient buffers with `param.grad` views, lists of gradients that are reduced in each step, the static gradients
of a CUDA graph: there the next steps use the tensor that was the gradient at the boundary, not `param.grad`. So a
restored rank gets the same tensor objects back, with zeros in the memory that they had. Gradients are held by weak
references: a strong one would keep their memory over `zero_grad(set_to_none=True)`. Torch keeps the object of a
gradient as long as the parameter has the gradient, whether or not Python code holds it.

Torch refuses to swap a tensor that has weak references, and swaps the gradients of DTensors in `model.to(...)`. So a
gradient that is about to be swapped is let go.

`put_memory_back` gives parameters and optimizer state the tensors and the memory back that they had at the boundary.

A script may put other memory under a parameter for a while, as in `param.data = average` for an evaluation, or
another tensor into the state of an optimizer. If its step is cut off then, a restore must write into what lay there
at the boundary: what lies there now belongs to something else. A DTensor has its memory in another tensor inside.
Under those of FSDP2 nothing is put here: it knows where its shards lie (trainer/adapters/fsdp2.py).
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Iterable, Set
from typing import Any

import torch
from torch import Tensor

from deadpool.snapshot.copying.bulk import LiveBulk, LiveTensor
from deadpool.snapshot.record.tensors import local_address, local_part, set_local_part, shard_in
from deadpool.snapshot.state import cures
from deadpool.snapshot.state.objects import Objects

_grad_of = operator.attrgetter("grad")
_remembering: weakref.WeakSet[GradientObjects] = weakref.WeakSet()


class GradientObjects:
    """The gradients of the parameters at the last boundary. Only the main thread may use it."""

    def __init__(self) -> None:
        self._refs: list[weakref.ref[Tensor] | None] = []
        self._addresses: list[int] = []

    def remember(self, params: Iterable[Tensor]) -> list[int]:
        """Returns the indices of the parameters that have a gradient now. It runs at every boundary: gradients that are
        the same objects as before cost only a comparison."""
        gradients = list(map(_grad_of, params))
        if not self._knows(gradients):
            _let_go_before_a_swap()
            _remembering.add(self)
            self._refs = [None if each is None else weakref.ref(each) for each in gradients]
            self._addresses = [0 if each is None else _address(each) for each in gradients]
        return [index for index, each in enumerate(gradients) if each is not None]

    def forget(self) -> None:
        """The parameters are others now, so that an index means another one."""
        self._refs, self._addresses = [], []

    def let_go(self, tensor: object) -> None:
        """Forgets a tensor that is about to be another one, under the same object."""
        for index, ref in enumerate(self._refs):
            if ref is not None and ref() is tensor:
                self._refs[index] = None

    def _knows(self, gradients: list[Tensor | None]) -> bool:
        if len(gradients) != len(self._refs):
            return False
        return all(map(operator.is_, (None if ref is None else ref() for ref in self._refs), gradients))

    def restore(self, params: Iterable[Tensor], having: Iterable[int]) -> None:
        """Gives zeros to the parameters with these indices, and None to the others. Frameworks must have been reset."""
        with_gradient = set(having)
        with torch.no_grad():
            for index, param in enumerate(params):
                zeros = self._zeros(index, param) if index in with_gradient else None
                if param.grad is not zeros:
                    param.grad = zeros

    def _zeros(self, index: int, param: Tensor) -> Tensor:
        """Returns the gradient of the boundary, where it still exists; else the one that is there, which a newcomer has
        from its preparation or its dry steps, and which a framework may know; else a new tensor."""
        if not cures.is_off("D1"):
            for known in (self._remembered(index), param.grad):
                if known is not None and _fits(known, param) and _fill_with_zeros(known):
                    return known
        return torch.zeros_like(param)

    def _remembered(self, index: int) -> Tensor | None:
        ref = self._refs[index] if index < len(self._refs) else None
        gradient = None if ref is None else ref()
        return gradient if gradient is not None and _address(gradient) == self._addresses[index] else None


@functools.cache
def _let_go_before_a_swap() -> None:
    """Once in a process, and only in one that holds weak references."""
    swap_tensors: Any = torch.utils.swap_tensors

    @functools.wraps(swap_tensors)
    def swap(t1: Any, t2: Any) -> Any:
        for tensor in (t1, t2):
            if weakref.getweakrefcount(tensor):
                for gradients in _remembering:
                    gradients.let_go(tensor)
        return swap_tensors(t1, t2)

    torch.utils.swap_tensors = swap


def _address(gradient: Tensor) -> int:
    return local_address(gradient) if gradient.layout == torch.strided else 0  # a sparse one has no single address


def _fits(gradient: Tensor, param: Tensor) -> bool:
    """A parameter that got another shape or dtype since then takes no such gradient."""
    same_dtype = gradient.dtype == param.dtype or gradient is param.grad
    return same_dtype and gradient.shape == param.shape and gradient.device == param.device


def _fill_with_zeros(gradient: Tensor) -> bool:
    """Returns False for a gradient that cannot be written, such as an expanded one."""
    try:
        (local_part(gradient) if gradient.layout == torch.strided else gradient).zero_()
    except RuntimeError:
        return False
    return True


def put_memory_back(bulk: LiveBulk, objects: Objects, without: Set[int]) -> None:
    """Call it after frameworks were reset, which put data of their own under parameters during a forward pass. Tensors
    whose ids are in `without` are left as they are."""
    if cures.is_off("D2"):
        return
    for item in bulk.live:
        if item.key[0] == "state":
            _put_state_back(item, objects)
        if item.key[0] == "buffer" or id(item.tensor) in without:
            continue
        shard = bulk.shards.get(item.key)
        if shard is not None and shard_in(item.tensor) is not shard:
            set_local_part(item.tensor, shard)
        _bind(item.tensor if shard is None else shard, bulk.locals[item.key])


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
