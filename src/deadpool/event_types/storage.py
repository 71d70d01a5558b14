"""Events of disks that take nothing any more: what is to be written waits in memory, and training goes on."""

from __future__ import annotations

from deadpool.event_types.event_type import EventType

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
        fields={"node": "whose disk; absent: the coordinator's", "what_waits": "what is written again"},
        console="{what_waits} are written again",
    ),
)
