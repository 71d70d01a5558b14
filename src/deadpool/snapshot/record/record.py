"""Encodes nested Python state of everyday types as bytes, and decodes it exactly. Owns this format.

msgpack handles its own types (None, bool, int, float, str, bytes, list, dict) at the speed of C. Every other type is an
extension whose payload is msgpack again. There is no pickle: decoding makes values of the types listed here and runs no
other code. bytearray and memoryview are decoded as bytes.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import numpy as np
import torch
from torch import Tensor

from deadpool.errors import StateError
from deadpool.snapshot.record.tensors import dense_part, dtype_from_name, dtype_name, from_bytes, is_dtensor, to_bytes
from deadpool.snapshot.state.rng import from_parts, is_sparse, parts_of

_NATIVE_TYPES = (type(None), bool, float, str, bytes, bytearray, memoryview)
_NUMPY_KINDS = "biufcSUmM"
_DEFAULT_FACTORIES: dict[str, Callable[[], Any] | None] = {
    "None": None,
    **{factory.__name__: factory for factory in (int, float, bool, str, list, dict, set, tuple)},
}


class _CannotStoreError(Exception):
    """Is raised inside msgpack, which does not know the path of the value in the state."""


def encode(value: object, path: str) -> bytes:
    """Returns the value as bytes. `path` names it in errors."""
    try:
        return _pack(value)
    except _CannotStoreError as error:
        found = _find_culprit(value, path)
        where, reason = found if found else (path, str(error))
        raise StateError(f"{where}: {reason}") from None
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path} is nested too deeply, or contains itself ({error})") from None


def decode(data: bytes | memoryview, path: str) -> Any:
    """Returns the value that encode() got, as new objects. `path` names it in errors."""
    try:
        return _unpack(data)
    except StateError:
        raise
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise StateError(f"{path}: the stored state is damaged or of another format ({error})") from error


def _pack(value: object) -> bytes:
    packed: bytes = msgpack.packb(value, default=_extend, strict_types=True, unicode_errors="surrogatepass")
    return packed


def _unpack(data: bytes | memoryview) -> Any:
    return msgpack.unpackb(data, ext_hook=_restore, strict_map_key=False, unicode_errors="surrogatepass")


def _extend(value: Any) -> msgpack.ExtType:
    found = _ENCODERS.get(type(value))
    if found is not None:
        code, encoder = found
    elif isinstance(value, np.generic):
        code, encoder = _NUMPY_SCALAR, _numpy_scalar
    elif isinstance(value, Tensor):
        raise _CannotStoreError(_advice_for_tensor(value))
    else:
        raise _CannotStoreError(_advice(value))
    return msgpack.ExtType(code, encoder(value))


def _restore(code: int, payload: bytes) -> Any:
    decoder = _DECODERS.get(code)
    if decoder is None:
        raise ValueError(f"unknown extension {code}")
    return decoder(payload)


def _advice(value: object) -> str:
    return (
        f"object of type {type(value).__name__} cannot be stored; make its state_dict return numbers, strings, lists, "
        "dicts or tensors"
    )


def _advice_for_tensor(value: Tensor) -> str:
    if is_dtensor(value):
        return "a DTensor cannot be stored here; protect the module or optimizer it belongs to itself"
    return f"tensor of type {type(value).__name__} cannot be stored; store plain tensors"


def _find_culprit(value: Any, path: str) -> tuple[str, str] | None:
    """Returns the path of the first value that cannot be stored, and why. It is called only after an error."""
    for child_path, child in _children(value, path):
        found = _find_culprit(child, child_path)
        if found:
            return found
    if type(value) in (*_NATIVE_TYPES, list, dict):
        return None
    try:
        _pack(value)
    except _CannotStoreError as error:
        return path, str(error)
    return None


def _children(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if type(value) in (dict, OrderedDict, defaultdict, Counter):
        for key, child in value.items():
            yield f"key {key!r} of {path}", key
            yield f"{path}[{key!r}]", child
    elif type(value) in (list, tuple, deque):
        for index, child in enumerate(value):
            yield f"{path}[{index}]", child
    elif type(value) in (set, frozenset):
        for child in value:
            yield f"a member of {path}", child


def _big_int(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def _unordered(value: set[Any] | frozenset[Any]) -> bytes:
    """Sorts the members by their bytes, so that equal sets give equal records with any hash seed."""
    return _pack(sorted(value, key=_pack))


def _default_dict(value: defaultdict[Any, Any]) -> bytes:
    factory = value.default_factory
    name = getattr(factory, "__name__", "None" if factory is None else "")
    if name not in _DEFAULT_FACTORIES or _DEFAULT_FACTORIES[name] is not factory:
        raise _CannotStoreError(f"defaultdict with the factory {factory!r} cannot be stored; return a plain dict")
    return _pack([name, dict(value)])


def _default_dict_back(payload: bytes) -> defaultdict[Any, Any]:
    name, items = _unpack(payload)
    return defaultdict(_DEFAULT_FACTORIES[name], items)


def _deque_back(payload: bytes) -> deque[Any]:
    maxlen, items = _unpack(payload)
    return deque(items, maxlen)


def _array(value: np.ndarray[Any, Any]) -> bytes:
    if value.dtype.kind not in _NUMPY_KINDS:
        raise _CannotStoreError(f"numpy array of dtype {value.dtype} cannot be stored; use numbers or strings")
    return _pack([value.dtype.str, list(value.shape), value.tobytes()])


def _array_back(payload: bytes) -> np.ndarray[Any, Any]:
    dtype, shape, data = _unpack(payload)
    return np.ndarray(tuple(shape), _numpy_dtype(dtype), data).copy()


def _numpy_scalar(value: np.generic) -> bytes:
    return _array(np.asarray(value))


def _numpy_dtype(name: str) -> np.dtype[Any]:
    dtype = np.dtype(name)
    if dtype.kind not in _NUMPY_KINDS:
        raise ValueError(f"numpy dtype {name!r} is not allowed")
    return dtype


def _tensor(value: Tensor) -> bytes:
    """An expanded tensor is stored without its repetitions, with the shape to expand it to."""
    device = value.device
    if is_sparse(value):
        return _pack(parts_of(value))
    if device.type == "meta" or value.layout != torch.strided:
        raise _CannotStoreError(f"tensor on {device} with layout {value.layout} cannot be stored")
    if value.is_quantized:
        raise _CannotStoreError(f"quantized tensor ({value.dtype}) cannot be stored: keep its integers and its scale")
    dense = dense_part(value.detach())
    parts = [dtype_name(value.dtype), list(dense.shape), device_name(device), value.requires_grad, to_bytes(dense)]
    return _pack(parts if dense.shape == value.shape else [*parts, list(value.shape)])


def device_name(device: torch.device) -> str:
    """Omits the index if this is the process's own device: the newcomer's device may have another index."""
    if device.type == "cuda" and device.index == torch.cuda.current_device():
        return "cuda"
    return str(device)


def _tensor_back(payload: bytes) -> Tensor:
    parts = _unpack(payload)
    if isinstance(parts[-1], Tensor):
        return from_parts(parts)
    dtype, shape, device, requires_grad, data, *expanded = parts
    tensor = from_bytes(data, dtype_from_name(dtype), tuple(shape)).to(device)
    return (tensor.expand(expanded[0]) if expanded else tensor).requires_grad_(requires_grad)


def _parameter_back(payload: bytes) -> torch.nn.Parameter:
    tensor = _tensor_back(payload)
    return torch.nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)


def _items(value: Any) -> bytes:
    return _pack(list(value))


def _mapping(value: Any) -> bytes:
    return _pack(dict(value))


_NUMPY_SCALAR = 12
_TYPES: tuple[tuple[int, type, Callable[[Any], bytes], Callable[[bytes], Any]], ...] = (
    (1, int, _big_int, lambda payload: int.from_bytes(payload, "little", signed=True)),
    (2, complex, lambda value: _pack([value.real, value.imag]), lambda payload: complex(*_unpack(payload))),
    (3, tuple, _items, lambda payload: tuple(_unpack(payload))),
    (4, set, _unordered, lambda payload: set(_unpack(payload))),
    (5, frozenset, _unordered, lambda payload: frozenset(_unpack(payload))),
    (6, OrderedDict, _mapping, lambda payload: OrderedDict(_unpack(payload))),
    (7, defaultdict, _default_dict, _default_dict_back),
    (8, deque, lambda value: _pack([value.maxlen, list(value)]), _deque_back),
    (9, Counter, _mapping, lambda payload: Counter(_unpack(payload))),
    (10, range, lambda value: _pack([value.start, value.stop, value.step]), lambda payload: range(*_unpack(payload))),
    (11, np.ndarray, _array, _array_back),
    (_NUMPY_SCALAR, np.generic, _numpy_scalar, lambda payload: _array_back(payload)[()]),
    (13, Tensor, _tensor, _tensor_back),
    (14, torch.nn.Parameter, _tensor, _parameter_back),
    (15, torch.Size, _items, lambda payload: torch.Size(_unpack(payload))),
    (16, torch.dtype, lambda value: _pack(dtype_name(value)), lambda payload: dtype_from_name(_unpack(payload))),
    (17, torch.device, lambda value: _pack(str(value)), lambda payload: torch.device(_unpack(payload))),
)
_ENCODERS = {kind: (code, encoder) for code, kind, encoder, _ in _TYPES}
_DECODERS = {code: decoder for code, _, _, decoder in _TYPES}


def code_of(kind: type) -> int:
    """The extension as which values of this type are encoded."""
    return next(code for code, known, _, _ in _TYPES if known is kind)
