"""What DeadPool has to say inside a user's process: plain lines on stderr.

Not `warnings`: its filters are the script's. Where it has set them to "error", a warning of ours would raise in the
middle of a recovery.
"""

from __future__ import annotations

import contextlib
import sys


def note(text: str) -> None:
    """Writes one line. A stderr that the script has closed or replaced by something broken is the script's affair."""
    with contextlib.suppress(Exception):
        print(f"deadpool: {text}", file=sys.stderr, flush=True)
