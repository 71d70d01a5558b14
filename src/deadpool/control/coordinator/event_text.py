"""Events as sentences on the coordinator's console. The sentences stand in the events' types."""

from __future__ import annotations

from typing import Any

from deadpool.events.types import BY_NAME


class ConsoleLines:
    """The sentences of one job, in which what many ranks report comes once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def line(self, record: dict[str, Any]) -> str | None:
        line, event = console_line(record), BY_NAME.get(record["what"])
        if line is None or event is None or not event.once:
            return line
        if line in self._said:
            return None
        self._said.add(line)
        return line


def console_line(record: dict[str, Any]) -> str | None:
    """None: the record is for the log only. An agent of another version may report events that are not known here."""
    event = BY_NAME.get(record["what"])
    return event.sentence(record) if event is not None else None
