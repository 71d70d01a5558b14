"""What torch's flight recorder knows of NCCL's collectives: which of them the device is in, how long past ones took.

It tells whether a collective has started only if collectives are timed (nccl.prepare_environment sees to that). Reading
it asks the device about events, which would spoil a CUDA graph that another thread captures meanwhile: so a thread that
reads has to relax its capture mode first. It raises a RuntimeError if the device is broken.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from torch._C import _distributed_c10d

_dump = getattr(_distributed_c10d, "_dump_nccl_trace", None)  # None: this torch was built without NCCL


@dataclass(frozen=True, slots=True)
class EndedCollective:
    group: int
    enqueued_ns: int  # since 1970
    seconds: float  # on the device, with the time in which it waited for peers


def is_available() -> bool:
    return _dump is not None


def started() -> frozenset[int]:
    """The numbers of the collectives that have begun on the device and not ended."""
    entries = _entries(only_active=True)
    return frozenset(int(each["record_id"]) for each in entries if each["state"] == "started")


def ended() -> list[EndedCollective]:
    """The last ones, in the order in which they were enqueued. Takes tens of milliseconds if there are thousands."""
    return [
        EndedCollective(int(each["pg_id"]), int(each["time_created_ns"]), float(each["duration_ms"]) / 1000)
        for each in _entries(only_active=False)
        if each.get("duration_ms") is not None
    ]


def _entries(*, only_active: bool) -> list[dict[str, Any]]:
    assert _dump is not None
    raw = _dump(includeCollectives=True, includeStackTraces=False, onlyActive=only_active)
    entries: list[dict[str, Any]] = pickle.loads(raw).get("entries", [])
    return entries
