"""A snapshot from this node's own memory is checked while it is loaded: memory may change with nobody writing to it.

What came over the network was checked by the agent as it arrived. What has lain here was checked when it was captured,
and since then nobody has looked at it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from deadpool.protocol.seal import REGIONS, Geometry, Region, Seal, digest_of
from deadpool.snapshot.checksums import HASHING_THREADS, digest_region
from deadpool.snapshot.slot import region

if TYPE_CHECKING:
    from deadpool.snapshot.state import ProtectedState


def load_checked(state: ProtectedState, slot: memoryview, geometry: Geometry, seal: Seal) -> Region | None:
    """Loads it. Which region is not as sealed, if any: then what was loaded is not to be used.

    The record first, since everything is placed by it; the bulk beside the load, which takes about as long.
    """
    if not _is_as_sealed(slot, geometry, seal, "record", None):
        return "record"
    with ThreadPoolExecutor(1 + HASHING_THREADS, "check") as threads:
        bulk = threads.submit(_find_spoilt, slot, geometry, seal, threads if HASHING_THREADS > 1 else None)
        state.restore(slot, geometry, seal.extent)
        return bulk.result()


def _find_spoilt(slot: memoryview, geometry: Geometry, seal: Seal, threads: ThreadPoolExecutor | None) -> Region | None:
    bulk: list[Region] = [name for name in REGIONS if name != "record"]
    return next((name for name in bulk if not _is_as_sealed(slot, geometry, seal, name, threads)), None)


def _is_as_sealed(
    slot: memoryview, geometry: Geometry, seal: Seal, name: Region, threads: ThreadPoolExecutor | None
) -> bool:
    return digest_region(region(slot, geometry, seal.extent, name), threads) == digest_of(seal.digest, name)
