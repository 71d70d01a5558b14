"""Small values that come again and again: one object for all equal ones, looked at once. Part of the schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SHARED_AT_MOST = 4096

Step = Callable[[Any], Any]


def sharing(unpack: Step) -> Step:
    """What `unpack` refuses, it refuses again."""
    known: dict[Any, Any] = {}

    def step(value: Any) -> Any:
        try:
            return known[value]
        except KeyError:
            if len(known) >= SHARED_AT_MOST:
                known.clear()
            made = known[value] = unpack(value)
            return made
        except TypeError:
            return unpack(value)

    return step
