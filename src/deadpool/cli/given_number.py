"""Numbers that are given on the command line: one that cannot be used is refused in the same words everywhere."""

from __future__ import annotations

import math

from deadpool.errors import ConfigError


def check_at_least(least: float, **values: float | None) -> None:
    """Each by the name of its option; None was not given. Infinity and "not a number" are refused too."""
    for name, value in values.items():
        if value is not None and not least <= value < math.inf:
            _refuse(name, value, f"at least {_text(least)}")


def check_more_than(least: float, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not least < value < math.inf:
            _refuse(name, value, f"more than {_text(least)}")


def _refuse(name: str, value: float, what: str) -> None:
    unit = " s" if name.endswith("_s") else ""
    raise ConfigError(f"{name}={_text(value)} cannot be used: give {what}{unit}")


def _text(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
