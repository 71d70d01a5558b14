"""What the launcher, the sessions and the daemons say to each other: one JSON object per line, with its name in "op".

From the launcher to a session: ask, clock, attach, start; to a daemon: agent, beat, end. From a session: facts, clock,
attached, absent; from a daemon: line, lines_lost, exit, coordinator_restarted, announced, events, progress, ended.
"""

from __future__ import annotations

import json
from typing import Any

MARK = b"deadpool-ssh/1 "
"""The mark before each line from a host: a login shell may print anything around it."""
LINE_LIMIT_BYTES = 8 << 20


def encode(op: str, **fields: Any) -> bytes:
    return json.dumps({"op": op, **fields}).encode() + b"\n"


def encode_marked(op: str, **fields: Any) -> bytes:
    return MARK + encode(op, **fields)


def decode(line: bytes) -> dict[str, Any] | None:
    """None: not one of our lines."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and "op" in message else None


def decode_marked(line: bytes) -> dict[str, Any] | None:
    """Text without an end of line may stand before the mark, as a shell's greeting does."""
    _, found, rest = line.partition(MARK)
    return decode(rest) if found else None
