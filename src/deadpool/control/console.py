"""Lines for the console that coordinator, agents and trainers share."""

from __future__ import annotations

import sys


def print_line(text: str) -> None:
    """By one write, end of line included: with PYTHONUNBUFFERED, which many images set, print() makes two of it, and
    what another process says comes between them."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
