"""Prints docs/events.md: `python -m deadpool.events.types > docs/events.md`."""

from __future__ import annotations

from deadpool.events.types.document import document

print(document(), end="")
