"""Functions from source that we write ourselves, of the names of our own classes, while a module is imported.

As dataclasses does it. The one place that evaluates anything, and nothing that was received ever comes here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def function(source: str, names: dict[str, Any]) -> Callable[[Any], Any]:
    made: Callable[[Any], Any] = eval(source, names)
    return made
