"""What takes a trainer's main thread elsewhere."""

from __future__ import annotations

from deadpool.errors import Unwind


class Superseded(Exception):
    """What was waited for will not come: a newer generation began."""


class RunAgain(Unwind):
    """Takes a spare back to the top of its script."""


class Restart(Unwind):
    """Takes a trainer out of its script: a fresh process goes on from the memory of its node."""
