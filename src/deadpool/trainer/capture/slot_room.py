"""Asks the agent for larger slots when the state of this rank has outgrown them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from deadpool.protocol.messages import Declare
from deadpool.protocol.seal import Extent, Geometry

if TYPE_CHECKING:
    from deadpool.trainer.job import Job

SLOT_WAIT_S = 30.0
"""Limit for the wait for larger slots: before the first step, and after it, when the state of an optimizer such as Adam
has appeared."""


def ensure(job: Job) -> None:
    """Waits until slots have room for the state: that happens twice in a job."""
    session, state = job.session, job.state
    longest = max(job.records, key=len)
    if _fits(state.extent(longest), session.core.geometry):
        return
    needed = state.measure()
    job.capturer.finish()  # what is in flight is declared before its slot is given back
    with session.changed:
        session.core.declare(needed)
    session.send(Declare(geometry=needed, peers=state.peers))
    began = time.monotonic()
    session.wait(lambda: session.core.has_slots or session.core.is_aborted or None, timeout_s=SLOT_WAIT_S)
    session.emit(
        "slots_allocated",
        bytes=needed.slot_bytes,
        device_bytes=state.device_bytes,
        waited_s=time.monotonic() - began,
    )


def _fits(extent: Extent, room: Geometry | None) -> bool:
    if room is None:
        return False
    same_bulk = (extent.unique_bytes, extent.replica_bytes) == (room.unique_bytes, room.replica_bytes)
    return same_bulk and extent.record_bytes <= room.record_capacity
