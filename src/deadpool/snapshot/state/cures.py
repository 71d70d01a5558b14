"""Cures of what strangers' scripts do that a mutation test can switch off: for tests only.

The names are those of the defects: D1 gradients that the script holds, D2 memory under parameters, D3 writes that torch
does not count, D4 parameters that are exchanged, D5 attributes of modules, D6 state of own classes, D7 and D8
buffers that are assigned or expanded, D9 batches that are drawn before their step.
"""

from __future__ import annotations

import os

VARIABLE = "DEADPOOL_TEST_WITHOUT_CURE"


def is_off(cure: str) -> bool:
    """Asks the environment each time, because processes are forked from one that has imported this."""
    return cure in os.environ.get(VARIABLE, "").split(",")
