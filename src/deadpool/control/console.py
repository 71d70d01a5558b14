"""Lines for the console that coordinator, agents and trainers share."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from typing import Any


def print_line(text: str) -> None:
    """By one write, end of line included: with PYTHONUNBUFFERED, which many images set, print() makes two of it, and
    what another process says comes between them.

    A terminal that was closed and a full disk cost the line, and nothing else. So nothing is left in a buffer, which
    Python would fail to write when it exits.
    """
    if sys.stdout is None:  # it was closed before this process began
        return
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        try:
            descriptor = sys.stdout.fileno()
        except (io.UnsupportedOperation, AttributeError):  # something in Python takes the place of the real one
            sys.stdout.write(f"{text}\n")
        else:
            os.write(descriptor, f"{text}\n".encode(errors="replace"))


def print_record(**fields: Any) -> None:
    """One line of JSON, for whoever collects logs. What is empty is left out."""
    print_line(json.dumps({"t": time.time(), **{name: value for name, value in fields.items() if value is not None}}))
