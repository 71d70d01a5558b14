"""Cures of issue 31 that a mutation test can switch off: for tests only."""

from __future__ import annotations

import os

_OFF = frozenset(os.environ.get("DEADPOOL_TEST_WITHOUT_CURE", "").split(","))


def is_off(cure: str) -> bool:
    return cure in _OFF
