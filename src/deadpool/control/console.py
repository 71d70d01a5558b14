"""Lines for the console that coordinator, agents and trainers share."""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def print_line(text: str) -> None:
    """By one write, end of line included: with PYTHONUNBUFFERED, which many images set, print() makes two of it, and
    what another process says comes between them."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def print_record(**fields: Any) -> None:
    """One line of JSON, for whoever collects logs. What is empty is left out."""
    print_line(json.dumps({"t": time.time(), **{name: value for name, value in fields.items() if value is not None}}))
