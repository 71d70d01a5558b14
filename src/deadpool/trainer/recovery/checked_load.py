"""Checks a snapshot from this node's own memory while it is loaded, because memory may change without being written.

A snapshot that came over the network was checked by the agent as it arrived. A snapshot of this node was hashed when it
was captured and has not been checked since.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from deadpool.protocol.seal import REGIONS, Geometry, Region, Seal, digest_of
from deadpool.snapshot.arena.checksums import HASHING_THREADS, digest_region
from deadpool.snapshot.arena.slot import region

if TYPE_CHECKING:
    from deadpool.snapshot.state.state import ProtectedState


def load_checked(state: ProtectedState, slot: memoryview, geometry: Geometry, seal: Seal) -> Region | None:
    """Loads the snapshot. Returns the region that differs from its seal, if any: the loaded state is then unusable.

    The record is checked first, since it says where everything goes; the bulk is checked in parallel with the load,
    which takes about as long.
    """
    if not _is_as_sealed(slot, geometry, seal, "record", None):
        return "record"
    with ThreadPoolExecutor(1 + HASHING_THREADS, "check") as threads:
        bulk = threads.submit(_find_damaged, slot, geometry, seal, threads if HASHING_THREADS > 1 else None)
        state.restore(slot, geometry, seal.extent)
        return bulk.result()


def find_damaged(slot: memoryview, geometry: Geometry, seal: Seal) -> Region | None:
    """The region that differs from its seal, if any; nothing is loaded."""
    if not _is_as_sealed(slot, geometry, seal, "record", None):
        return "record"
    return _find_damaged(slot, geometry, seal, None)


def is_record_as_sealed(slot: memoryview, geometry: Geometry, seal: Seal) -> bool:
    return _is_as_sealed(slot, geometry, seal, "record", None)


def _find_damaged(
    slot: memoryview, geometry: Geometry, seal: Seal, threads: ThreadPoolExecutor | None
) -> Region | None:
    bulk: list[Region] = [name for name in REGIONS if name != "record"]
    return next((name for name in bulk if not _is_as_sealed(slot, geometry, seal, name, threads)), None)


def _is_as_sealed(
    slot: memoryview, geometry: Geometry, seal: Seal, name: Region, threads: ThreadPoolExecutor | None
) -> bool:
    return digest_region(region(slot, geometry, seal.extent, name), threads) == digest_of(seal.digest, name)
