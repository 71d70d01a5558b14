"""Events of job.log and job.on_final."""

from __future__ import annotations

from deadpool.events.types.event_type import EventType

EVENTS = (
    EventType(
        name="journal_failed",
        meaning="A sink of the journal cannot be written; entries wait, and training goes on.",
        action="Free the disk, or look at the server.",
        fields={"sink": "the sink", "reason": "the error"},
    ),
    EventType(
        name="journal_dropped",
        meaning="Too many entries waited for a sink, or the job has ended: entries were given up.",
        action="Free the disk, or look at the server; the other sinks have these entries.",
        fields={"steps": "the steps", "count": "how many entries"},
    ),
    EventType(
        name="actions_lost",
        meaning="What waited in `job.on_final` was lost with the process that held the rank.",
        action="Use `job.log` for what must not have gaps.",
        fields={"step": "the step that training resumed at", "steps": "the steps whose actions are lost"},
    ),
)
