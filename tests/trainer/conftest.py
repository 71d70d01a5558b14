"""A loop around a device twin, for tests of captures. Whatever a test has made is closed after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from capture_stage import Stage
from device_twin import DeviceTwin


@pytest.fixture
def twin() -> DeviceTwin:
    return DeviceTwin()


@pytest.fixture
def make_stage() -> Iterator[Callable[..., Stage]]:
    stages: list[Stage] = []

    def make(*arguments: Any, **options: Any) -> Stage:
        stages.append(Stage(*arguments, **options))
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()
