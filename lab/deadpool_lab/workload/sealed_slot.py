"""Seals a slot at once, for tests and benchmarks without an agent. An agent hashes in threads and seals afterwards."""

from __future__ import annotations

from deadpool.protocol.identity import Version
from deadpool.protocol.seal import Seal
from deadpool.snapshot.arena.slot import Extent, Geometry, compute_piece_digests, write_seal


def seal_slot(view: memoryview, geometry: Geometry, *, rank: int, version: Version, extent: Extent) -> Seal:
    geometry.check(extent)
    digest = compute_piece_digests(view, geometry, extent).digest
    seal = Seal(rank=rank, version=version, extent=extent, digest=digest, full=True)
    write_seal(view, seal)
    return seal
