"""What must hold in the simulated world, apart from the cores: the checkers, and the truth that they compare with."""

from __future__ import annotations


class Violation(Exception):
    """Something happened that must not."""


def fail(checker: str, text: str) -> None:
    """`checker` is its letter or name, as docs/protocol.md lists it."""
    raise Violation(f"({checker}) {text}")
