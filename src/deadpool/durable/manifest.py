"""The manifest of a checkpoint: what it contains, with checksums. It is written last, so its presence means complete.

It is JSON for people and programs. Its own checksum is among its fields, so a torn manifest is none.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from deadpool.durable.store import Store
from deadpool.protocol.messages import Copy
from deadpool.protocol.seal import Geometry
from deadpool.snapshot.arena.checksums import checksum
from deadpool.snapshot.arena.seal_bytes import pack_seal, unpack_seal

MANIFEST = "manifest.json"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    name: str
    job: str
    step: int
    positions: int
    per_node: int
    written_at: float
    torch: str
    files: dict[str, tuple[int, str]]  # by path in the checkpoint: size, checksum
    copies: tuple[Copy, ...] = field(repr=False)  # one per rank, in order

    @property
    def total_bytes(self) -> int:
        return sum(size for size, _ in self.files.values())


def encode_manifest(manifest: Manifest) -> bytes:
    body = asdict(manifest) | {"format": FORMAT, "copies": [_from_copy(copy) for copy in manifest.copies]}
    body["checksum"] = _checksum(body)
    return json.dumps(body, indent=1, sort_keys=True).encode()


def decode_manifest(data: bytes) -> Manifest | None:
    """None: torn, damaged, or of another format."""
    try:
        body = json.loads(data)
        claimed = body.pop("checksum")
        if claimed != _checksum(body) or body.pop("format") != FORMAT:
            return None
        body["files"] = {path: (size, digest) for path, (size, digest) in body["files"].items()}
        return Manifest(**body | {"copies": tuple(map(_to_copy, body["copies"]))})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def read_manifest(store: Store, name: str) -> Manifest | None:
    """None: there is no complete checkpoint of this name."""
    try:
        manifest = decode_manifest(store.read(f"{name}/{MANIFEST}"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return manifest if manifest is not None and manifest.name == name else None


def complete_ones(store: Store) -> list[Manifest]:
    """Newest step first; of equal steps the one written last."""
    found = [manifest for name in store.folders() if (manifest := read_manifest(store, name)) is not None]
    return sorted(found, key=lambda manifest: (manifest.step, manifest.written_at), reverse=True)


def hex_of(digest: int) -> str:
    return f"{digest:016x}"


def _checksum(body: dict[str, Any]) -> str:
    return hex_of(checksum(json.dumps(body, sort_keys=True).encode()))


def _from_copy(copy: Copy) -> dict[str, Any]:
    geometry = copy.geometry
    return {
        "seal": pack_seal(copy.seal).hex(),
        "geometry": [geometry.record_capacity, geometry.unique_bytes, geometry.replica_bytes],
        "peers": list(copy.peers),
    }


def _to_copy(fields: dict[str, Any]) -> Copy:
    seal = unpack_seal(bytes.fromhex(fields["seal"]))
    if seal is None:
        raise ValueError("a seal is damaged")
    record, unique, replica = fields["geometry"]
    geometry = Geometry(record_capacity=record, unique_bytes=unique, replica_bytes=replica)
    return Copy(seal=seal, geometry=geometry, peers=tuple(fields["peers"]))
