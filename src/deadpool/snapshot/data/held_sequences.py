"""Lists, arrays and open files in attributes of datasets, collators and samplers, as an epoch begins with them.

A sampler that shuffles its list in place goes on in the next epoch from the order of this one, and a process that takes
part later has a list that was never shuffled. So where the contents differ from those that were there first, they are
part of what an epoch begins with: as places in the first list, which may hold any objects, or as plain values.
"""

from __future__ import annotations

import io
import operator
import zlib
from collections import deque
from typing import Any

import numpy as np
import torch

from deadpool.errors import ConfigError
from deadpool.snapshot.record.record import decode, encode

MOST_ELEMENTS = 1_000_000
_MOST_BYTES = 8 << 20
_MOST_BYTES_READ = 64 << 20
_PLAIN = (int, float, bool, str, bytes, type(None))


def is_sequence(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        is_dense = type(value) is torch.Tensor and value.layout is torch.strided and not value.is_quantized
        return is_dense and value.dim() == 1 and value.is_cpu and not value.requires_grad
    if isinstance(value, np.ndarray):
        return type(value) is np.ndarray and value.ndim == 1 and value.dtype.kind in "biuf"
    return type(value) in (list, deque) or isinstance(value, io.IOBase)


class FirstContents:
    """What a list, an array or a file was when it was first looked at. `is_known`: in every process it was that."""

    def __init__(self, path: str, value: Any, *, is_known: bool) -> None:
        self._path, self._value = path, value
        self._plain: bytes | None = None
        self._contents: Any = None
        if not is_known:
            self._contents = []
        elif isinstance(value, io.IOBase):
            self._contents = _offset(value)
        elif isinstance(value, torch.Tensor | np.ndarray):
            data = _bytes_of(value)
            self._contents = None if data is None else zlib.crc32(data)
            self._plain = encode(value, path) if data is not None and len(data) <= _MOST_BYTES else None
        else:
            self._contents = list(value)

    def changed(self, value: Any) -> bytes | None:
        """Returns what has to be put into it in another process. None: nothing, or it is nothing that can be told."""
        if isinstance(value, io.IOBase):
            at = _offset(value)
            return None if at is None or at == self._contents else encode(["file", at], self._path)
        if isinstance(value, torch.Tensor | np.ndarray):
            return self._changed_array(value)
        return None if not is_sequence(value) else self._changed_list(value)

    def write(self, value: Any, data: bytes | None) -> Any:
        """Returns the value that belongs into the attribute: the same object, if its contents can be changed."""
        if data is None:
            return self._first(value)
        kind, stored = decode(data, self._path)
        if kind == "file":
            if isinstance(value, io.IOBase):
                value.seek(stored)
            return value
        if kind == "array":
            return _with_array(value, stored)
        if kind == "order":
            stored = [self._contents[index] for index in stored.tolist()]
        if not isinstance(stored, list):
            return stored
        return _with_elements(value, stored)

    def _first(self, value: Any) -> Any:
        """Nothing was told of it: it is as it was first, unless nothing can be told of what it is now."""
        if self.changed(value) is None:
            return value
        if isinstance(value, io.IOBase) and isinstance(self._contents, int):
            value.seek(self._contents)
            return value
        if isinstance(value, torch.Tensor | np.ndarray | io.IOBase):
            return value if self._plain is None else _with_array(value, decode(self._plain, self._path))
        return _with_elements(value, self._contents)

    def _changed_array(self, value: Any) -> bytes | None:
        data = _bytes_of(value)
        if self._contents is None or data is None or zlib.crc32(data) == self._contents:
            return None
        if len(data) > _MOST_BYTES:
            self._require_replaced(value)
            return None
        return encode(["array", value], self._path)

    def _changed_list(self, value: Any) -> bytes | None:
        first = self._contents
        if not isinstance(first, list):
            return None
        if len(value) == len(first) and all(map(operator.is_, value, first)):
            return None
        if len(value) > MOST_ELEMENTS:
            self._require_replaced(value)
            return None
        places = {id(each): index for index, each in enumerate(first)}
        if all(id(each) in places for each in value):
            return encode(["order", np.array([places[id(each)] for each in value], dtype=np.int64)], self._path)
        if any(type(each) not in _PLAIN for each in value):
            return None
        if all(type(each) in _PLAIN for each in first) and list(value) == first:
            return None
        return encode(["plain", list(value)], self._path)

    def _require_replaced(self, value: Any) -> None:
        """A long one that each epoch makes anew needs nothing from the epoch before."""
        if value is self._value:
            raise ConfigError(
                f"{self._path} is changed in place from epoch to epoch, and is too long ({len(value)} elements) to "
                "travel with each version: make it anew in each epoch, from its number"
            )


def _bytes_of(value: Any) -> Any:
    if value.nbytes > _MOST_BYTES_READ:
        return None
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous().view(torch.uint8).numpy()
    return np.ascontiguousarray(value).view(np.uint8)


def _offset(file: io.IOBase) -> int | None:
    try:
        return file.tell()
    except (OSError, ValueError):  # it is closed, no file on a disk, or in the midst of lines
        return None


def _with_array(value: Any, stored: Any) -> Any:
    if type(value) is not type(stored) or value.shape != stored.shape or value.dtype != stored.dtype:
        return stored
    if isinstance(value, torch.Tensor):
        value.copy_(stored)
    elif value.flags.writeable:
        value[...] = stored
    else:
        return stored
    return value


def _with_elements(value: Any, stored: list[Any]) -> Any:
    if type(value) is list:
        value[:] = stored
    elif type(value) is deque:
        value.clear()
        value.extend(stored)
    else:
        return list(stored)
    return value
