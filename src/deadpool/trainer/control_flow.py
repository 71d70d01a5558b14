"""What takes a trainer's main thread elsewhere, or its process away."""

from __future__ import annotations

from deadpool.errors import Unwind

CODE_RESTART = 75
"""Exit code of a process that another one is to replace. Not 0: never to be taken for the end of a script."""


class Superseded(Exception):
    """What was waited for will not come: a newer generation began."""


class Restart(Unwind):
    """Takes a trainer out of its script: a fresh process goes on from the memory of its node."""
