"""Writes a copy to a file, for a job that cannot continue, and reads it back. Owns this format; it needs no torch.

    DPKEPT1 LF | length of the header, 8 bytes little-endian | header, JSON | record | unique | replica

The header names the rank, the step, the generation that made the version and, for each region, its size and xxh3 digest
(as in slot.py). A holder's copy may lack the replica region: its size is 0 then, and another rank's file has the region
with the same digest. A file is readable only by its owner. It is written under another name first, so that a file with
its final name is complete.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deadpool.errors import StateError
from deadpool.protocol.messages import Copy
from deadpool.protocol.seal import REGIONS, Region, digest_of
from deadpool.snapshot.slot import digest_region, region

_MAGIC = b"DPKEPT1\n"
_LENGTH_BYTES = 8
SUFFIX = ".kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvageFile:
    """One rank's bytes, which were read from a file and verified."""

    path: Path
    rank: int
    step: int
    born: str
    regions: dict[Region, bytes]
    digests: dict[Region, str]
    sizes: dict[Region, int]  # of the regions when they were captured


def write_salvage(folder: Path, copy: Copy, slot: memoryview) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    seal = copy.seal
    path = folder / f"rank-{seal.rank}-step-{seal.version.number}{SUFFIX}"
    parts = {name: region(slot, copy.geometry, seal.extent, name) for name in REGIONS if seal.full or name != "replica"}
    header = json.dumps(_header(copy, parts)).encode()
    draft = path.with_suffix(".draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(_MAGIC + len(header).to_bytes(_LENGTH_BYTES, "little") + header)
        for part in parts.values():
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return path


def _header(copy: Copy, parts: dict[Region, memoryview]) -> dict[str, Any]:
    seal = copy.seal
    extent = {"record": seal.extent.record_bytes, "unique": seal.extent.unique_bytes}
    return {
        "rank": seal.rank,
        "step": seal.version.number,
        "born": str(seal.version.born),
        "stored_bytes": {name: len(part) for name, part in parts.items()},
        "bytes": extent | {"replica": seal.extent.replica_bytes},
        "xxh3": {name: f"{digest_of(seal.digest, name):016x}" for name in REGIONS},
    }


def read_salvage(path: Path) -> SalvageFile:
    """Reads and verifies a file. Raises a StateError if it is no such file, or if it is damaged."""
    data = memoryview(path.read_bytes())
    begin = len(_MAGIC) + _LENGTH_BYTES
    if data[: len(_MAGIC)] != _MAGIC:
        raise StateError(f"{path} is not a salvaged copy")
    end = begin + int.from_bytes(data[len(_MAGIC) : begin], "little")
    header = json.loads(bytes(data[begin:end]))
    regions: dict[Region, bytes] = {}
    for name in (name for name in REGIONS if name in header["stored_bytes"]):
        part = data[end : end + header["stored_bytes"][name]]
        end += len(part)
        if f"{digest_region(part):016x}" != header["xxh3"][name]:
            raise StateError(f"{path}: region {name!r} is not as it was sealed")
        regions[name] = bytes(part)
    return SalvageFile(
        path=path,
        rank=header["rank"],
        step=header["step"],
        born=header["born"],
        regions=regions,
        digests=header["xxh3"],
        sizes=header["bytes"],
    )
