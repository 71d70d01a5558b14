"""Every event that a job can log: its name, its fields, what it means and what an operator does about it.

`docs/events.md` is generated from these types (`python -m deadpool.events.types`), and the console takes its sentences
from them. A test fails where code emits an event or a field that has no type, or where a type is emitted nowhere.
"""

from __future__ import annotations

from deadpool.events.event import COMMON_FIELDS, EventType
from deadpool.events.types import (
    checkpoints,
    coordinators,
    copies,
    corruption,
    membership,
    protection,
    recovery,
    scripts,
)

GROUPS: dict[str, tuple[EventType, ...]] = {
    "Nodes and spares": membership.EVENTS,
    "Drains and slow nodes": membership.DRAIN_EVENTS,
    "Protection that follows the health of nodes": protection.EVENTS,
    "Jobs that shrink and grow": protection.SIZE_EVENTS,
    "Recoveries, as the coordinator sees them": recovery.EVENTS,
    "Recoveries, as each rank sees them": recovery.RANK_EVENTS,
    "The end of a job": coordinators.END_EVENTS,
    "Snapshots and their copies": copies.EVENTS,
    "State that replicas do not hold alike": corruption.EVENTS,
    "Audits of steps": corruption.STEP_AUDIT_EVENTS,
    "Durable checkpoints": checkpoints.EVENTS,
    "Coordinators and connections": coordinators.EVENTS,
    "The training script and rehearsals": scripts.EVENTS,
    "Audits of exactness": scripts.AUDIT_EVENTS,
    "The journal": scripts.JOURNAL_EVENTS,
    "Disks that take nothing": copies.STORAGE_EVENTS,
    "Pools of spare machines": checkpoints.POOL_EVENTS,
    "Injected faults": checkpoints.INJECTION_EVENTS,
}
BY_NAME: dict[str, EventType] = {event.name: event for group in GROUPS.values() for event in group}

__all__ = ["BY_NAME", "COMMON_FIELDS", "GROUPS", "EventType"]
