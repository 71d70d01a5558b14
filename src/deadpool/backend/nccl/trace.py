"""What torch's flight recorder knows of NCCL's collectives: which of them the device is in, how long past ones took.

It tells whether a collective has started only if collectives are timed (nccl.prepare_environment sees to that). Reading
it asks the device about events, which would break a CUDA graph that another thread captures meanwhile: so a thread that
reads has to relax its capture mode first. Entries of communicators that were aborted stay in it for a while, and may
look as if they ran: so only those that were enqueued since a given time are read.

NCCL2 (since torch 2.15) has a recorder of its own, which never says that a collective has started: with it a device
that waits in one is not seen, and past ones have durations.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from torch._C import _distributed_c10d

from deadpool.backend.torch_versions import ProcessGroupNCCL2

_dump = getattr(_distributed_c10d, "_dump_nccl_trace_json", None)  # None: this torch was built without NCCL
_dump_any = getattr(_distributed_c10d, "_dump_fr_trace_json", None)
_NCCL2 = "nccl2"  # the name under which NCCL2's collectives are recorded, whatever the backend was called


@dataclass(frozen=True, slots=True)
class Collective:
    number: int
    group: int
    enqueued_ns: int  # since 1970
    has_started: bool
    is_pair: bool  # sent to or received from one rank: a pipeline may enqueue it long before it is due
    seconds: float | None  # on the device, with the time in which it waited for peers; None: not ended


def is_available() -> bool:
    """Tells whether the recorder may be read: without torch's cache of events it would read events that are gone."""
    return _dump is not None and os.environ.get("TORCH_NCCL_CUDA_EVENT_CACHE", "1").lower() not in ("0", "false", "n")


def pending(since_ns: int) -> list[Collective]:
    """Returns the collectives that have not ended, in the order in which they were enqueued."""
    return _read(since_ns, only_active=True)


def ended(since_ns: int) -> list[Collective]:
    """The last ones that have. Takes tens of milliseconds if there are thousands."""
    return [each for each in _read(since_ns, only_active=False) if each.seconds is not None]


def _read(since_ns: int, *, only_active: bool) -> list[Collective]:
    assert _dump is not None
    wanted: dict[str, bool] = {"includeCollectives": True, "onlyActive": only_active}
    dumps = [_dump(**wanted)]
    if ProcessGroupNCCL2 is not None and _dump_any is not None:
        dumps.append(_dump_any(**wanted, backend=_NCCL2))
    entries: list[dict[str, Any]] = [entry for dump in dumps for entry in json.loads(dump).get("entries", [])]
    return [_collective(each) for each in entries if int(each["time_created_ns"]) >= since_ns]


def _collective(entry: dict[str, Any]) -> Collective:
    duration_ms = entry.get("duration_ms")
    return Collective(
        number=int(entry["record_id"]),
        group=int(entry["pg_id"]),
        enqueued_ns=int(entry["time_created_ns"]),
        has_started=entry["state"] == "started",
        is_pair=bool(entry["is_p2p"]),
        seconds=float(duration_ms) / 1000 if duration_ms is not None else None,
    )
