"""Events of the end of a job, and of what is written to disk then."""

from __future__ import annotations

from deadpool.events.types.event_type import EventType

EVENTS = (
    EventType(
        name="finished",
        meaning="Every rank has left its training loop.",
        action="Nothing.",
    ),
    EventType(
        name="lost_after_release",
        meaning="A rank was lost after all ranks had left their training loop; it is not replaced.",
        action="Nothing if what the script writes after its loop is there; else resume from it.",
        fields={
            "node": "the lost node, or the node of the lost trainer",
            "rank": "the rank of the lost trainer, where only a trainer was lost",
            "ranks": "all ranks that are lost",
            "reason": "how it was seen",
        },
    ),
    EventType(
        name="salvaging",
        meaning="The job cannot go on; nodes write the newest complete copies to disk.",
        action="Wait for `salvaged`.",
        fields={"step": "the version that is written", "nodes": "the nodes that write"},
        console="writing what is left of version {step} to disk on nodes {nodes}",
    ),
    EventType(
        name="salvaged",
        meaning="A node has written the copies that it holds.",
        action="Read them with `deadpool durable salvage FOLDER`.",
        fields={
            "node": "the node",
            "ranks": "the ranks whose copies were written",
            "folder": "where, on that node",
            "failure": "what could not be written, and why",
        },
    ),
    EventType(
        name="completed",
        meaning="The script has ended on every rank.",
        action="Nothing.",
        fields={"reason": "how it ended"},
        console="completed: {reason}",
    ),
    EventType(
        name="failed",
        meaning="The job has ended before its time.",
        action="`reason` says what to do.",
        fields={"reason": "why, and what is left of it"},
        console="FAILED: {reason}",
    ),
)
