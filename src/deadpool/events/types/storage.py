"""Events of disks that take nothing any more: what is to be written waits in memory, and training goes on."""

from __future__ import annotations

from deadpool.events.types.event_type import EventType

EVENTS = (
    EventType(
        name="storage_failed",
        meaning="The run folder's disk does not take what is to be written: it is full, read-only, slow or gone. The "
        "lines wait in memory, and training goes on.",
        action="Make room, or mount it again: nothing has to be restarted. `deadpool status` says how much waits.",
        fields={
            "node": "whose disk; absent: the coordinator's",
            "what_waits": "what is not written",
            "reason": "what the disk answered",
            "waiting": "lines in memory by then",
        },
        console="NOT WRITTEN: {what_waits} ({reason}); they wait in memory, and training goes on",
    ),
    EventType(
        name="storage_back",
        meaning="The disk takes everything again, and what had waited in memory is written.",
        action="Nothing.",
        fields={
            "node": "whose disk; absent: the coordinator's",
            "what_waits": "what is written again",
            "dropped": "those that are lost, because too many waited in memory",
        },
        console="{what_waits} are written again; {dropped} were dropped",
    ),
    EventType(
        name="events_dropped",
        meaning="A node had no coordinator for so long that its oldest events were dropped; a thousand are kept.",
        action="Nothing: the log lacks them, and training does not need them.",
        fields={"node": "the node", "count": "events that are in no log"},
        console="{count} events of node {node} are lost: it had no coordinator to log them",
    ),
)
