"""Prints docs/events.md: `python -m deadpool.event_types > docs/events.md`."""

from __future__ import annotations

from deadpool.event_types.document import document

print(document(), end="")
