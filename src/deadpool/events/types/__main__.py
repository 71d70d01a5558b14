"""The reference of all events as Markdown, from their types: `python -m deadpool.events.types > docs/events.md`."""

from __future__ import annotations

from collections.abc import Mapping

from deadpool.events.types import COMMON_FIELDS, GROUPS, EventType

_HEAD = """\
# Events

<!-- Generated: python -m deadpool.events.types > docs/events.md -->

A job logs one line of JSON per event to `events.jsonl` in its run folder. The coordinator writes that file; agents and
trainers report their events to it. Events marked *console* are also printed by the coordinator. `deadpool show story`
shows the events of each recovery, `deadpool show picture` draws them.

A *version* is the training state after so many completed steps; a *snapshot* is one rank's part of it. Steps count from
0 ([how steps are counted](glossary.md#how-steps-are-counted)).

Fields of every event, where they are known:

"""


def document() -> str:
    parts = [_HEAD + _fields(COMMON_FIELDS)]
    for title, events in GROUPS.items():
        parts.append(f"## {title}\n")
        parts += [_section(event) for event in events]
    return "\n".join(parts)


def _section(event: EventType) -> str:
    shown = " *(console)*" if event.console else ""
    text = f"### `{event.name}`\n\n{event.meaning}{shown}\n\n**What to do:** {event.action}\n"
    return text + (f"\n{_fields(event.fields)}" if event.fields else "")


def _fields(fields: Mapping[str, str]) -> str:
    return "".join(f"- `{name}`: {meaning}\n" for name, meaning in fields.items())


if __name__ == "__main__":
    print(document(), end="")
