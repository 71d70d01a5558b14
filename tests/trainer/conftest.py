"""A loop around a device twin, for tests of captures. Whatever a test has made is closed after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from capture_bench import CaptureBench
from device_twin import DeviceTwin


@pytest.fixture
def twin() -> DeviceTwin:
    return DeviceTwin()


@pytest.fixture
def make_bench() -> Iterator[Callable[..., CaptureBench]]:
    benches: list[CaptureBench] = []

    def make(*arguments: Any, **options: Any) -> CaptureBench:
        benches.append(CaptureBench(*arguments, **options))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()
