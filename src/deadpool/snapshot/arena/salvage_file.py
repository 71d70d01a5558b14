"""Writes a copy to a file, for a job that cannot continue, and reads it back. Owns this format; it needs no torch.

    DPKEPT2 LF | seal (slot.py) | record | unique | replica

The seal says how long each region is. The copy of a holder may lack the replica region: its seal is not `full` then,
and the file of another rank has the region, with the same digest. A file is written under another name first and
readable by its owner only, so a file with the final name is whole.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from deadpool.errors import StateError
from deadpool.protocol.messages import Copy
from deadpool.protocol.seal import REGIONS, Region, Seal, digest_of, extent_of
from deadpool.snapshot.arena.checksums import digest_region
from deadpool.snapshot.arena.slot import SEAL_BYTES, pack_seal, region, unpack_seal

_MAGIC = b"DPKEPT2\n"
_HEADER_BYTES = len(_MAGIC) + SEAL_BYTES
SUFFIX = ".kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvageFile:
    """One rank's bytes, which were read from a file and verified."""

    path: Path
    seal: Seal
    regions: dict[Region, bytes]

    @property
    def rank(self) -> int:
        return self.seal.rank

    @property
    def step(self) -> int:
        return self.seal.version.number


def write_salvage(folder: Path, copy: Copy, slot: memoryview) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    seal = copy.seal
    path = folder / f"rank-{seal.rank}-step-{seal.version.number}{SUFFIX}"
    draft = path.with_suffix(".draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(_MAGIC + pack_seal(seal))
        for name in _stored(seal):
            file.write(region(slot, copy.geometry, seal.extent, name))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return path


def _stored(seal: Seal) -> tuple[Region, ...]:
    return tuple(name for name in REGIONS if seal.full or name != "replica")


def read_salvage(path: Path) -> SalvageFile:
    """Reads and verifies a file. Raises a StateError if it is no such file, or if it is damaged."""
    data = memoryview(path.read_bytes())
    seal = unpack_seal(data[len(_MAGIC) : _HEADER_BYTES]) if data[: len(_MAGIC)] == _MAGIC else None
    if seal is None:
        raise StateError(
            f"{path} is no salvaged copy, or one of another version of DeadPool: read it with the version that wrote it"
        )
    regions: dict[Region, bytes] = {}
    start = _HEADER_BYTES
    for name in _stored(seal):
        part = data[start : start + extent_of(seal.extent, name)]
        start += len(part)
        if digest_region(part) != digest_of(seal.digest, name):
            raise StateError(f"{path}: region {name!r} is not as it was sealed")
        regions[name] = bytes(part)
    return SalvageFile(path=path, seal=seal, regions=regions)
