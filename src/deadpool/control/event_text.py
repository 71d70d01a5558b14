"""Events as sentences on the coordinator's console. The sentences stand in the events' types."""

from __future__ import annotations

from typing import Any

from deadpool.event_types import BY_NAME


def console_line(record: dict[str, Any]) -> str | None:
    """None: the record is for the log only. An agent of another version may report events that are not known here."""
    event = BY_NAME.get(record["what"])
    return event.sentence(record) if event is not None else None
