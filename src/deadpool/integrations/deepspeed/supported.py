"""What cannot be protected, because a step could not be redone exactly, or because nobody has tried. It is refused."""

from __future__ import annotations

from typing import Any

TESTED = {"deepspeed": ("0.19",)}


def require_supported(engine: Any) -> None:
    pass
