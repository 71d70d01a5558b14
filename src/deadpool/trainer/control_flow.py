"""Exceptions that take a trainer's main thread out of its step or its script, and the exit code of a restart."""

from __future__ import annotations

from deadpool.errors import Unwind

CODE_RESTART = 75
"""Exit code of a process that another one is to replace. It is not 0, so it is never taken for the end of a script."""


class Superseded(Exception):
    """The expected order will not come, because a newer generation began."""


class Restart(Unwind):
    """Ends the script of a trainer: a fresh process goes on from the memory of its node."""
