"""What is written can be read back bit for bit, with torch and without; what is torn, damaged or too old is found."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.checkpoint as dcp
from checkpoint_maker import RANKS, RECORDING, MadeRank, finish_task, make_model, name_of, write_parts, write_whole
from typer.testing import CliRunner

from deadpool.cli.main import app
from deadpool.durable import rate
from deadpool.durable.manifest import (
    MANIFEST,
    as_checkpoint,
    complete_ones,
    decode_manifest,
    faults_of,
    load_rank,
    newest_checkpoint,
)
from deadpool.durable.part_file import PartWriter, host_buffers
from deadpool.durable.rate import RateLimit
from deadpool.durable.shards import data_path, decode_part, part_path, share_out
from deadpool.durable.store import DirectoryStore
from deadpool.durable.writer import finish
from deadpool.errors import CopyDamaged, StateError
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.arena.slot import region
from deadpool.snapshot.state.host_state import capture_module


@pytest.fixture
def where(tmp_path: Path) -> str:
    return str(tmp_path / "check points")


def test_plain_torch_loads_it_into_a_plain_model(where):
    write_whole(DirectoryStore(Path(where)), where, 3)
    model = make_model()
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=Path(where) / name_of(3), no_dist=True)
    trained = MadeRank(0, 3)
    for name, tensor in trained.model.state_dict().items():
        assert torch.equal(state["model"][name], tensor), name
    trained.close()


def test_replicas_write_each_byte_once(where):
    write_whole(DirectoryStore(Path(where)), where, 3)
    sizes = [(Path(where) / name_of(3) / data_path(rank)).stat().st_size for rank in RANKS]
    manifest = complete_ones(DirectoryStore(Path(where)))[0]
    assert min(sizes) > 0
    assert sum(size for path, (size, _) in manifest.files.items() if path.endswith(".distcp")) == sum(sizes)
    names = [name for rank in RANKS for name in _written_by(Path(where) / name_of(3), rank)]
    params = [name for name in names if ".running_" not in name and ".num_batches" not in name]
    assert len(params) == len(set(params)) > 10


def _written_by(folder: Path, rank: int) -> list[str]:
    return [piece.name for piece in decode_part((folder / part_path(rank)).read_bytes()).found().values()]


def test_buffers_that_differ_are_all_there(where):
    write_whole(DirectoryStore(Path(where)), where, 3)
    metadata = dcp.FileSystemReader(Path(where) / name_of(3)).read_metadata()
    assert {"model.1.running_mean", "model.1.running_mean@rank1"} <= metadata.state_dict_metadata.keys()
    assert "model.1.running_var@rank1" not in metadata.state_dict_metadata  # equal on both, so it is one


@pytest.mark.parametrize("rank", RANKS)
def test_a_rank_is_read_back_without_torch(where, rank):
    store = DirectoryStore(Path(where))
    copies = write_whole(store, where, 3)
    made = MadeRank(rank, 3)
    segment = Segment.create("read", copies[rank].geometry, 1)
    load_rank(store, name_of(3), copies[rank], segment.slot(0), functools.partial(_put, segment))
    for name in ("unique", "replica"):
        extent, geometry = copies[rank].seal.extent, copies[rank].geometry
        assert region(segment.slot(0), geometry, extent, name) == region(made.segment.slot(0), geometry, extent, name)
    segment.close()
    made.close()
    found = as_checkpoint(store, complete_ones(store)[0])
    assert (found.number, found.copies, found.recordings) == (3, copies, (RECORDING, RECORDING))


def test_damage_is_found_before_it_is_loaded(where):
    store = DirectoryStore(Path(where))
    copies = write_whole(store, where, 3)
    path = Path(where) / name_of(3) / data_path(0)
    data = bytearray(path.read_bytes())
    part = decode_part((Path(where) / name_of(3) / part_path(0)).read_bytes())
    data[next(shard.at[2] for shard in part.shards if shard.at and shard.region and shard.nbytes)] ^= 1
    path.write_bytes(data)
    assert len(faults_of(store, complete_ones(store)[0])) == 1
    segment = Segment.create("read", copies[0].geometry, 1)
    with pytest.raises((CopyDamaged, StateError)):
        load_rank(store, name_of(3), copies[0], segment.slot(0), functools.partial(_put, segment))
    segment.close()
    result = CliRunner().invoke(app, ["durable", "verify", where])
    assert (result.exit_code, "DAMAGED" in result.output) == (1, True)


def _put(segment: Segment, start: int, data: memoryview) -> None:
    with segment.slot(0) as slot:
        slot[start : start + len(data)] = data


def test_torn_write_is_no_checkpoint(where):
    """Cut off after any file, or in the middle of the manifest."""
    store = DirectoryStore(Path(where))
    write_whole(store, where, 3)
    copies = write_parts(store, 4)
    assert newest_checkpoint(store).step == 3
    (Path(where) / name_of(4) / data_path(1)).unlink()
    with pytest.raises(OSError):
        finish(finish_task(where, 4, copies))
    assert newest_checkpoint(store).step == 3
    whole = (Path(where) / name_of(3) / MANIFEST).read_bytes()
    (Path(where) / name_of(4) / ".metadata").touch()
    for count in range(0, len(whole), 97):
        (Path(where) / name_of(4) / MANIFEST).write_bytes(whole[:count])
        assert newest_checkpoint(store).step == 3
    assert all(decode_manifest(whole[:i] + b"x" + whole[i + 1 :]) is None for i in range(40, len(whole), 61))


def test_ranks_that_only_claim_to_be_the_same_are_refused(where):
    store = DirectoryStore(Path(where))
    copies = write_parts(store, 3)
    other = MadeRank(1, 3, shifted=1.0)
    PartWriter(store, name_of(3), RateLimit(0)).write(other.copy, other.segment.slot(0), b"")
    other.close()
    with pytest.raises(StateError, match="counts as the same on ranks"):
        finish(finish_task(where, 3, copies))


def test_snapshot_that_was_damaged_in_memory_is_not_written(where):
    made = MadeRank(0, 3)
    _put(made.segment, made.copy.geometry.offset("replica") + 5, memoryview(b"?"))
    with pytest.raises(StateError, match="damaged"):
        PartWriter(DirectoryStore(Path(where)), name_of(3), RateLimit(0)).write(made.copy, made.segment.slot(0), b"")
    made.close()


def test_old_ones_go_and_every_nth_stays(where):
    store = DirectoryStore(Path(where))
    write_parts(store, 5)  # cut off: nobody completes it
    (Path(where) / "mine").mkdir()
    for step in (10, 20, 25, 30, 35):
        write_whole(store, where, step, keep_last=2, keep_every=20)
    assert [manifest.step for manifest in complete_ones(store)] == [35, 30, 20]
    assert sorted(path.name for path in Path(where).iterdir()) == ["mine", *map(name_of, (20, 30, 35))]
    result = CliRunner().invoke(app, ["durable", "list", where])
    assert [line.split(":")[0] for line in result.output.splitlines()] == [name_of(step) for step in (35, 30, 20)]
    assert CliRunner().invoke(app, ["durable", "verify", where]).exit_code == 0


def test_bandwidth_is_bounded(where, monkeypatch):
    """By a clock on which only the pauses between writes take time."""
    now, pauses = [0.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(rate, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    write_parts(DirectoryStore(Path(where)), 3, bytes_per_s=50_000.0)
    total = sum(path.stat().st_size for path in (Path(where) / name_of(3)).rglob("*") if path.is_file())
    assert len(pauses) > 1 and sum(pauses) > 0.9 * total / 50_000.0


def test_work_is_shared_evenly_and_alike():
    sizes = [(f"t{index}", size) for index, size in enumerate(itertools.islice(itertools.cycle((1, 5, 9, 100)), 64))]
    shares = share_out(sizes, (2, 3, 7))
    load = {rank: sum(size for name, size in sizes if shares[name] == rank) for rank in (2, 3, 7)}
    assert max(load.values()) - min(load.values()) <= 100
    assert shares == share_out(reversed(sizes), (2, 3, 7))


def test_sparse_buffer_is_only_in_the_record():
    module = torch.nn.Module()
    module.register_buffer("edges", torch.eye(2).to_sparse())
    module.register_buffer("mask", torch.ones(1).expand(2, 3))
    found = host_buffers({"model": capture_module("model", {"": module}, {}, frozenset())})
    assert {name: tuple(each.shape) for name, each in found.items()} == {"model.mask": (2, 3)}
