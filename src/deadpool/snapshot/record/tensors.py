"""Accesses the bytes of single tensors: the part of a tensor on this rank, and its view as plain memory.

The record codec and the bulk copy share it. Everything goes through integer views of the same item size, so that bit
patterns of any dtype are preserved (bfloat16, float8, bool, NaN payloads).
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from deadpool.errors import StateError
from deadpool.snapshot.state.cures import is_off

_SAME_SIZE_DTYPE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
_ARRAY_TYPES = {1: "u1", 2: "i2", 4: "i4", 8: "i8", 16: "c16"}
_PLAIN_TYPES = (Tensor, torch.nn.Parameter)


def is_dtensor(tensor: Tensor) -> bool:
    """Does not import DTensor, which takes seconds: if it was not imported, there is no DTensor."""
    if type(tensor) in _PLAIN_TYPES:
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_part(tensor: Tensor) -> Tensor:
    """Returns the tensor's memory on this rank, outside autograd."""
    if type(tensor) in _PLAIN_TYPES:
        return tensor.detach()
    with torch.no_grad():
        return _shard(tensor).detach() if is_dtensor(tensor) else tensor.detach()


def local_address(tensor: Tensor) -> int:
    """Returns the address of the local memory, which changes when the same tensor gets other storage."""
    if type(tensor) in _PLAIN_TYPES or not is_dtensor(tensor):
        return tensor.data_ptr()
    shard = getattr(tensor, "_local_tensor", None)  # the result of to_local(), but faster
    if isinstance(shard, Tensor) and type(shard) in _PLAIN_TYPES:
        return shard.data_ptr()
    with torch.no_grad():
        return _shard(tensor).data_ptr()


def shard_in(tensor: Any) -> Tensor | None:
    """Returns the object inside of a DTensor that has its local memory."""
    return getattr(tensor, "_local_tensor", None) if is_dtensor(tensor) else None


def set_local_part(tensor: Any, memory: Tensor) -> None:
    """Puts other memory under the tensor. An assignment to `.data` of a DTensor does not change its local part."""
    if is_dtensor(tensor):
        tensor._local_tensor = memory
    else:
        tensor.data = memory


def _shard(dtensor: Any) -> Tensor:
    shard: Tensor = dtensor.to_local()
    return shard


def require_storable(tensor: Tensor, name: str) -> None:
    """Raises a StateError for a tensor that has no plain memory to copy."""
    if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
        raise StateError(f"{name} is not initialised yet (lazy module): run one forward pass before protect()")
    if tensor.device.type == "meta":
        raise StateError(f"{name} is on the meta device: materialise it (to_empty) before protect()")
    if tensor.layout != torch.strided:
        raise StateError(f"{name} has layout {tensor.layout}: only strided tensors can be stored")
    if tensor.is_quantized:
        raise StateError(
            f"{name} is quantized ({tensor.dtype}), so its bytes lack its scale: keep integers and a scale"
        )
    if not is_dtensor(tensor) and hasattr(tensor, "__tensor_flatten__"):
        raise StateError(f"{name} is a {type(tensor).__name__}: tensor subclasses other than DTensor cannot be stored")


def require_counted(tensor: Tensor, name: str) -> None:
    """Raises a StateError for a tensor of torch's inference mode: nothing tells when a step writes into it."""
    if tensor.is_inference():
        raise StateError(
            f"{name} was made in torch.inference_mode(), where torch counts no writes: use torch.no_grad() there"
        )


def integer_view(local: Tensor) -> Tensor:
    """Returns a view of the same memory, shape and strides as integers of the same size."""
    return local.view(_SAME_SIZE_DTYPE[local.dtype.itemsize])


def dense_part(local: Tensor) -> Tensor:
    """Returns a view of the memory under an expanded tensor, each element once; any other tensor itself. Torch refuses
    to write into memory that several elements share."""
    if 0 not in local.stride() or is_off("D8"):
        return local
    for dim, (size, stride) in enumerate(zip(local.shape, local.stride(), strict=True)):
        if stride == 0 and size > 1:
            local = local.narrow(dim, 0, 1)
    return local


def to_bytes(local: Tensor) -> bytes:
    """Returns a copy of a tensor's elements in row-major order. The memory is read by its address: after numpy() torch
    would refuse to resize it ever again."""
    whole = integer_view(local.detach().cpu().resolve_conj().resolve_neg()).contiguous()
    return ctypes.string_at(whole.data_ptr(), whole.nbytes) if whole.nbytes else b""


def array_over(local: Tensor) -> np.ndarray[Any, Any]:
    """Returns an array over the memory of a host tensor of integers, and keeps the tensor alive. It is made from the
    address: after numpy() torch would refuse to resize the memory ever again."""
    dtype = np.dtype(_ARRAY_TYPES[local.dtype.itemsize])
    if not local.numel():
        return np.empty(tuple(local.shape), dtype)
    strides = [stride * dtype.itemsize for stride in local.stride()]
    span = dtype.itemsize + sum((size - 1) * stride for size, stride in zip(local.shape, strides, strict=True))
    memory: Any = (ctypes.c_char * span).from_address(local.data_ptr())
    memory.owner = local
    return np.ndarray(tuple(local.shape), dtype, memory, 0, strides)


def from_bytes(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Returns a new CPU tensor, which can be resized."""
    tensor = torch.empty(shape, dtype=dtype)
    if tensor.nbytes != len(data):
        raise StateError(f"a stored {dtype} tensor of shape {shape} has {len(data)} bytes instead of {tensor.nbytes}")
    if data:
        ctypes.memmove(tensor.data_ptr(), data, len(data))
    return tensor


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_from_name(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise StateError(f"this torch has no dtype {name!r}")
    return dtype
