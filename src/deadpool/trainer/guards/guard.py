"""A guard looks at one thing that a script may do and that no recovery can make good.

It costs nothing that can be measured: it looks at few things, in the first steps, and now and then later. All calls
come from the script's thread, in steps that count, not in dry ones. A step that is cut off is not left: the next call
is `enter_step` again.
"""

from __future__ import annotations

from typing import Protocol

_ALWAYS_UNTIL = 4


class Guard(Protocol):
    def enter_step(self, number: int) -> None:
        """The block of the step begins."""

    def leave_step(self, number: int) -> None:
        """The block has ended without an exception. The script goes on behind it."""

    def at_boundary(self, number: int) -> None:
        """The script asks for the step after `number`, whose state has not been captured yet."""


def is_due(number: int) -> bool:
    """Whether a guard that costs something looks at this step: one of the first, or a power of two."""
    return number <= _ALWAYS_UNTIL or number & (number - 1) == 0
