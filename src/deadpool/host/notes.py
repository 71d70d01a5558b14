"""Prints DeadPool's messages inside a user's process as plain lines on stderr.

It does not use `warnings`, whose filters belong to the script: if the script has set them to "error", a warning of ours
would raise in the middle of a recovery.
"""

from __future__ import annotations

import contextlib
import sys


def note(text: str) -> None:
    """Writes one line. Errors are ignored: the script may have closed stderr, or replaced it by something broken."""
    with contextlib.suppress(Exception):
        print(f"deadpool: {text}", file=sys.stderr, flush=True)
