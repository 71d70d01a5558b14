"""Exported models are bit for bit the parameters, however ranks wrote them; nothing half-written has a final name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from checkpoint_maker import MadeRank, MadeSnapshot, name_of, write_whole
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from typer.testing import CliRunner

from deadpool.cli.main import app
from deadpool.durable.export import INDEX, Exported, export
from deadpool.durable.shards import data_path, decode_part, part_path
from deadpool.durable.store import DirectoryStore, open_store
from deadpool.errors import ConfigError, StateError

safetensors = pytest.importorskip("safetensors.torch", reason="needs safetensors")
GB = 10**9


@pytest.fixture
def where(tmp_path: Path) -> str:
    return str(tmp_path / "check points")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "exported"


def export_newest(where: str, out: Path, shard_bytes: int = GB, prefix: str | None = None, **more: bool) -> Exported:
    return export(open_store(where), out, name=None, prefix=prefix, shard_bytes=shard_bytes, **more)


def loaded(out: Path) -> dict[str, Tensor]:
    """All tensors of all files, each of which is in one only."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(out.glob("*.safetensors")):
        found = safetensors.load_file(path)
        assert not tensors.keys() & found.keys()
        tensors |= found
    return tensors


def require_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


def trained() -> dict[str, Tensor]:
    """Of rank 0."""
    made = MadeRank(0, 3)
    made.close()
    return made.model.state_dict()


def test_model_of_replicas(where, out):
    write_whole(DirectoryStore(Path(where)), where, 3)
    done = export_newest(where, out)
    require_same(loaded(out), trained())
    assert [path.name for path in out.iterdir()] == ["model.safetensors"]
    assert (done.prefix, done.manifest.name, done.of_ranks) == ("model", name_of(3), ())
    assert done.left_out == ("1.running_mean@rank1",)
    with safetensors.safe_open(out / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}  # transformers loads no other


def test_files_are_cut_and_indexed(where, out):
    write_whole(DirectoryStore(Path(where)), where, 3)
    done = export_newest(where, out, shard_bytes=100)
    count = len(done.files)
    assert count > 2
    assert done.files[1] == f"model-00002-of-{count:05d}.safetensors"
    assert sorted(path.name for path in out.iterdir()) == sorted([*done.files, INDEX])
    require_same(loaded(out), trained())
    index = json.loads((out / INDEX).read_text())
    assert index["metadata"]["total_size"] == done.total_bytes
    for file in done.files:
        found = safetensors.load_file(out / file)
        assert {name for name, of in index["weight_map"].items() if of == file} == found.keys()
        assert len(found) == 1 or sum(tensor.nbytes for tensor in found.values()) <= 100


@contextmanager
def as_rank(rank: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
    yield
    dist.destroy_process_group()


WHOLE = {
    "rows": torch.arange(15.0).reshape(5, 3),  # 3 rows and 2
    "columns": torch.arange(8.0).reshape(2, 4).bfloat16(),
    "one": torch.arange(2.0).reshape(1, 2),  # all on rank 0
    "all": torch.arange(4.0),
}
PLACED = {"rows": Shard(0), "columns": Shard(1), "one": Shard(0), "all": Replicate()}


def make_sharded(rank: int, step: int) -> MadeSnapshot:
    """Each rank has its part of every tensor."""
    with as_rank(rank):
        # With a name of its own: torch caches results by mesh, and would give this rank the mesh of the other one.
        mesh, model = init_device_mesh("cpu", (2,), mesh_dim_names=(f"seen_by_{rank}",)), nn.Module()
        for name, tensor in WHOLE.items():
            placed = PLACED[name]
            parts = tensor.chunk(2, placed.dim) if isinstance(placed, Shard) else (tensor, tensor)
            local = parts[rank].clone() if rank < len(parts) else tensor[:0].clone()
            shape = {"shape": tensor.shape, "stride": tensor.stride()}
            model.register_parameter(
                name, nn.Parameter(DTensor.from_local(local, mesh, [placed], run_check=False, **shape))
            )
        replicas = {id(model.get_parameter("all")): (0, 1)}
        return MadeSnapshot(rank, step, {"net": model}, replicas)


def test_plain_torch_loads_pieces_too(where):
    write_whole(DirectoryStore(Path(where)), where, 3, make=make_sharded)
    state = {"net": {name: torch.zeros_like(tensor) for name, tensor in WHOLE.items()}}
    dcp.load(state, checkpoint_id=Path(where) / name_of(3), no_dist=True)
    require_same(state["net"], WHOLE)


def test_pieces_of_several_ranks_become_one_tensor(where, out):
    write_whole(DirectoryStore(Path(where)), where, 3, make=make_sharded)
    done = export_newest(where, out)
    require_same(loaded(out), WHOLE)
    assert done.prefix == "net"


def make_gated_job(rank: int, step: int) -> MadeSnapshot:
    """Pipeline stages that count from 0, with tied parameters."""
    model = nn.ModuleDict({"embed": nn.Linear(3, 4, bias=False), "head": nn.Linear(3, 4, bias=False)})
    model["head"].weight = model["embed"].weight
    with torch.no_grad():
        model["embed"].weight.fill_(rank)
    return MadeSnapshot(rank, step, {"model": model}, {})


def test_names_of_stages_say_the_rank_and_tied_tensors_come_once(where, out):
    write_whole(DirectoryStore(Path(where)), where, 3, make=make_gated_job)
    done = export_newest(where, out)
    expected = {f"embed.weight@rank{rank}": torch.full((4, 3), float(rank)) for rank in (0, 1)}
    require_same(loaded(out), expected)
    assert done.of_ranks == ("embed.weight@rank0", "embed.weight@rank1")


def make_two_modules(rank: int, step: int) -> MadeSnapshot:
    torch.manual_seed(3)
    objects = {"actor": nn.Linear(2, 2), "critic": nn.Linear(2, 1)}
    return MadeSnapshot(rank, step, objects, {id(p): (0, 1) for each in objects.values() for p in each.parameters()})


def test_which_of_several_modules_has_to_be_said(where, out):
    write_whole(DirectoryStore(Path(where)), where, 3, make=make_two_modules)
    with pytest.raises(ConfigError, match="has 2 modules: give --prefix actor or --prefix critic"):
        export_newest(where, out)
    with pytest.raises(ConfigError, match="only below actor, critic"):
        export_newest(where, out, prefix="model")
    assert not out.exists()
    export_newest(where, out, prefix="critic")
    assert {name: tensor.shape for name, tensor in loaded(out).items()} == {"weight": (1, 2), "bias": (1,)}


def test_any_store(where, out):
    pytest.importorskip("fsspec")
    url = "memory://bucket/check points"
    store = open_store(url)
    write_whole(store, url, 3)
    export_newest(url, out)
    store.delete(name_of(3))
    require_same(loaded(out), trained())


def test_existing_files_are_replaced_only_by_force(where, out):
    write_whole(DirectoryStore(Path(where)), where, 3)
    export_newest(where, out, shard_bytes=100)
    with pytest.raises(ConfigError, match="already: give another --out, or --force"):
        export_newest(where, out)
    (out / "config.json").touch()
    export_newest(where, out, force=True)
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]
    require_same(loaded(out), trained())


def test_damaged_checkpoint_leaves_no_file(where, out):
    write_whole(DirectoryStore(Path(where)), where, 3)
    folder = Path(where) / name_of(3)
    pieces = decode_part((folder / part_path(1)).read_bytes()).found().values()
    last = max((piece for piece in pieces if piece.kind == "param"), key=lambda piece: piece.name)
    data = bytearray((folder / data_path(1)).read_bytes())
    data[last.at[2]] ^= 1
    (folder / data_path(1)).write_bytes(data)
    with pytest.raises(StateError, match=f"{last.name} is not as it was written"):
        export_newest(where, out, shard_bytes=100)
    assert list(out.iterdir()) == []


def test_command(where, out):
    for step in (3, 4):
        write_whole(DirectoryStore(Path(where)), where, step)
    result = CliRunner().invoke(
        app, ["durable", "export", where, name_of(3), "--out", str(out), "--shard-bytes", "1MB"]
    )
    assert result.exit_code == 0, result.output
    first, second = result.output.splitlines()
    assert first.startswith(f"{name_of(3)}: 9 tensors, 0.0 MB of model are in")
    assert second == "  1 buffers of other ranks were left out, as 1.running_mean@rank1"
    refused = CliRunner().invoke(app, ["durable", "export", where, "step-1", "--out", str(out), "--force"])
    assert isinstance(refused.exception, ConfigError)
    assert "there is no complete checkpoint step-1" in str(refused.exception)
    refused = CliRunner().invoke(app, ["durable", "export", where, "--out", str(out), "--shard-bytes", "much"])
    assert "--shard-bytes='much' cannot be used" in str(refused.exception)
