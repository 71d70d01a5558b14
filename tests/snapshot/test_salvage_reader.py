"""A copy is written to a file and read as tensors; a damaged file is refused, and so is a damaged slot."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace
from state_job import Job, Snapshot

from deadpool.errors import StateError
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import Copy
from deadpool.snapshot.arena.salvage_file import write_salvage
from deadpool.snapshot.record.salvage_reader import read_folder
from deadpool.trainer.recovery.loading import load_checked
from deadpool_lab.workload.sealed_slot import seal_slot


def sealed(job: Job, rank: int = 0) -> tuple[Snapshot, Copy]:
    snapshot = Snapshot(job.state)
    version = Version(Generation(1, 2), 3)
    seal = seal_slot(snapshot.slot, snapshot.geometry, rank=rank, version=version, extent=snapshot.extent)
    return snapshot, Copy(seal=seal, geometry=snapshot.geometry)


def test_salvaged_copy_has_the_same_state(tmp_path):
    job = Job()
    job.train(3)
    snapshot, copy = sealed(job)
    path = write_salvage(tmp_path / "kept", copy, snapshot.slot)
    assert path.stat().st_mode & 0o777 == 0o600
    kept = read_folder(tmp_path / "kept")[0]
    assert (kept.rank, kept.step, kept.missing) == (0, 3, ())
    for name, param in job.model.named_parameters():
        assert torch.equal(kept.tensors[f"model.{name}"], param.detach()), name
    assert kept.host["stateful"]["data"]["position"] == job.data.position
    kept.save(tmp_path / "plain")
    assert torch.load(tmp_path / "plain" / "rank-0.pt", weights_only=True)["step"] == 3


def test_replicated_bytes_come_from_another_ranks_file(tmp_path):
    job = Job(replicas=(0, 1))
    job.train(1)
    snapshot, copy = sealed(job)
    assert copy.seal.extent.replica_bytes
    held = Copy(seal=replace(copy.seal, full=False), geometry=copy.geometry.without_replica())
    write_salvage(tmp_path, held, snapshot.slot)
    assert "model.first.weight" in read_folder(tmp_path)[0].missing
    twin = Copy(seal=replace(copy.seal, rank=1), geometry=copy.geometry)
    write_salvage(tmp_path, twin, snapshot.slot)
    kept = read_folder(tmp_path)
    assert kept[0].missing == () and torch.equal(kept[0].tensors["model.first.weight"], job.model.first.weight.detach())


def test_damaged_or_foreign_file_is_refused(tmp_path):
    snapshot, copy = sealed(Job())
    path = write_salvage(tmp_path, copy, snapshot.slot)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StateError, match="is not as it was sealed"):
        read_folder(tmp_path)
    data[20] ^= 1  # in the seal
    path.write_bytes(data)
    with pytest.raises(StateError, match="is no salvaged copy"):
        read_folder(tmp_path)
    path.write_bytes(b"something else")
    with pytest.raises(StateError, match="is no salvaged copy"):
        read_folder(tmp_path)
    path.unlink()
    with pytest.raises(StateError, match="no salvaged copies"):
        read_folder(tmp_path)


@pytest.mark.parametrize("region", ["record", "unique"])
def test_flipped_bit_is_found_while_a_slot_is_loaded(region):
    job = Job()
    job.train(2)
    snapshot, copy = sealed(job)
    assert load_checked(job.state, snapshot.slot, snapshot.geometry, copy.seal) is None
    snapshot.slot[snapshot.geometry.offset(region)] ^= 0x10
    assert load_checked(job.state, snapshot.slot, snapshot.geometry, copy.seal) == region
