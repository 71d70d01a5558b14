"""Calls of the CUDA runtime, on a twin of its library: which call, which direction, and the text of an error."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from deadpool.errors import DeviceError
from deadpool.snapshot.copying.cuda import Addresses, Runtime


class ErrorText:
    restype: Any = None

    def __call__(self, code: ctypes.c_int) -> bytes:
        return b"out of coffee"


class LibraryTwin:
    """Copies immediately. `cudaMemcpyBatchAsync` takes the arguments of CUDA 13."""

    def __init__(self, version: int, code: int = 0) -> None:
        self._version, self._code = version, code
        self.calls: list[str] = []
        self.cudaGetErrorString = ErrorText()

    def cudaRuntimeGetVersion(self, number: Any) -> int:
        number._obj.value = self._version
        return 0

    def cudaGetLastError(self) -> int:
        return 0

    def cudaHostRegister(self, *_: Any) -> int:
        return self._code

    def cudaMemcpyAsync(self, target: Any, source: Any, size: Any, kind: Any, stream: Any) -> int:
        self.calls.append("one")
        ctypes.memmove(target, source, size.value)
        return self._code

    def cudaMemcpyBatchAsync(self, targets: Any, sources: Any, sizes: Any, count: Any, *rest: Any) -> int:
        attributes, first, attribute_count, stream = rest
        assert (attributes._obj.source_access_order, first._obj.value, attribute_count.value) == (1, 0, 1)
        assert ctypes.sizeof(attributes._obj) == 24 and stream.value == 77
        self.calls.append("batch")
        for index in range(count.value):
            ctypes.memmove(targets[index], sources[index], sizes[index])
        return self._code


@pytest.mark.parametrize(
    ("version", "registered", "expected"),
    [(13000, True, ["batch"]), (13000, False, ["one", "one"]), (12080, True, ["one", "one"])],
)
@pytest.mark.parametrize("to_host", [True, False])
def test_copies_go_in_one_call_where_that_is_sound(version, registered, expected, to_host):
    library = LibraryTwin(version)
    host = [(ctypes.c_char * 5)(*b"aaaaa"), (ctypes.c_char * 3)(*b"bbb")]
    device = [(ctypes.c_char * 5)(*b"AAAAA"), (ctypes.c_char * 3)(*b"BBB")]
    moves = [(ctypes.addressof(h), ctypes.addressof(d), len(h)) for h, d in zip(host, device, strict=True)]
    runtime = Runtime(library)  # type: ignore[arg-type]
    runtime.issue(Addresses.of(moves, registered=registered), 77, to_host=to_host)
    assert library.calls == expected
    wanted = [b"AAAAA", b"BBB"] if to_host else [b"aaaaa", b"bbb"]
    assert [each.raw for each in host] == wanted and [each.raw for each in device] == wanted


def test_error_names_call_and_cause():
    runtime = Runtime(LibraryTwin(13000, code=2))  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match=r"cudaHostRegister: out of coffee \(2\)"):
        runtime.register(4096, 4096)
