"""What a job that could not go on has left behind, as tensors again. Reads the files of salvage_file.py.

    ranks = read_folder("run/logs/kept")
    ranks[3].step, ranks[3].tensors["model.layers.0.weight"], ranks[3].host["stateful"]["scheduler"]

A tensor is the part that was on that rank: of a sharded parameter it is the shard, and `dtensor_specs` has its
placements, global shape and global stride. Files contain no code, and reading them runs none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deadpool.errors import StateError
from deadpool.protocol.seal import replica_of
from deadpool.snapshot.arena.salvage_file import SUFFIX, SalvageFile, read_salvage
from deadpool.snapshot.record.layout import DTensorSpec, TensorEntry, decode_layout, split_record
from deadpool.snapshot.record.record import decode
from deadpool.snapshot.record.tensors import from_bytes
from deadpool.snapshot.state.objects import describe


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvagedRank:
    rank: int
    step: int  # how many steps were completed
    tensors: dict[str, Tensor]
    dtensor_specs: dict[str, DTensorSpec]  # of the tensors that are shards
    host: dict[str, dict[str, Any]]  # RNG, schedulers, data positions: by kind and keyword
    missing: tuple[str, ...]  # tensors whose bytes only another rank had, and that are in no file here

    def save(self, folder: Path) -> None:
        """Writes a file that torch.load(path, weights_only=True) can read."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        torch.save({"step": self.step, "tensors": self.tensors}, folder / f"rank-{self.rank}.pt")


def read_folder(*folders: str | Path) -> dict[int, SalvagedRank]:
    """Reads the newest step of every rank. Pass several folders if nodes have written to disks of their own."""
    files = [read_salvage(path) for folder in folders for path in sorted(Path(folder).glob(f"*{SUFFIX}"))]
    if not files:
        raise StateError(
            f"there are no salvaged copies in {', '.join(map(str, folders))}: give the folders that the last line "
            "of the job names, as RUN/logs/kept"
        )
    newest = max(file.step for file in files)
    return {file.rank: _rank(file, files) for file in files if file.step == newest}


def _rank(file: SalvageFile, others: Iterable[SalvageFile]) -> SalvagedRank:
    encoded, host = split_record(file.regions["record"])
    regions = {"unique": file.regions.get("unique", b""), "replica": _replica(file, others)}
    entries = decode_layout(encoded).entries
    there = [entry for entry in entries if regions[entry.region] is not None]
    return SalvagedRank(
        rank=file.rank,
        step=file.step,
        tensors={describe(entry.key): _tensor(entry, regions[entry.region] or b"") for entry in there},
        dtensor_specs={describe(entry.key): entry.dtensor_spec for entry in there if entry.dtensor_spec is not None},
        host={kind: {name: decode(data, name) for name, data in parts.items()} for kind, parts in host.items()},
        missing=tuple(describe(entry.key) for entry in entries if regions[entry.region] is None),
    )


def _replica(file: SalvageFile, others: Iterable[SalvageFile]) -> bytes | None:
    """Returns the file's own replica, or that of any rank that held the same."""
    if not file.seal.extent.replica_bytes:
        return b""
    wanted = replica_of(file.seal)
    return next((o.regions["replica"] for o in (file, *others) if _has_replica(o, wanted)), None)


def _has_replica(file: SalvageFile, wanted: tuple[int, int]) -> bool:
    return "replica" in file.regions and replica_of(file.seal) == wanted


def _tensor(entry: TensorEntry, region: bytes) -> Tensor:
    return from_bytes(region[entry.offset : entry.offset + entry.nbytes], entry.dtype, entry.shape)
