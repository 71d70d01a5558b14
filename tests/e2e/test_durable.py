"""Checkpoints that agents write: plain torch loads them, and jobs begin from them bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from durable_job import SCRIPT, DurableJob, differing, load_whole, manifests
from unprotected import run_ranks

from deadpool.durable.export import export
from deadpool.durable.store import open_store

WORLD = {"ddp": 2, "fsdp2": 4, "tp": 2, "fsdp2-tp": 4, "3d": 8}


def ranks_of(layout: str) -> dict[str, int]:
    return {"nodes": 2, "nproc_per_node": WORLD[layout] // 2}


def require_equal(job: DurableJob, where: str) -> int:
    """Every rank's tensors are in the newest checkpoint. Returns its step."""
    newest = manifests(where)[0]
    loaded = load_whole(Path(where) / newest.name)
    for rank in range(WORLD[job.layout]):
        expected = job.expected(newest.step, rank)
        assert len(expected) > 10
        assert differing(loaded, expected) == []
    return newest.step


def require_exported_equal(job: DurableJob, where: str, out: Path) -> None:
    """Every rank's parameters are in the exported model, under the names that the module gives them."""
    load_file = pytest.importorskip("safetensors.torch").load_file
    done = export(open_store(where), out, name=None, prefix="model", shard_bytes=100_000)
    exported = {f"model.{name}": tensor for file in done.files for name, tensor in load_file(out / file).items()}
    for rank in range(WORLD[job.layout]):
        expected = job.expected(done.manifest.step, rank)
        params = {name: found for name, found in expected.items() if name.startswith("model.")}
        assert params and differing(exported, params) == []


@pytest.mark.parametrize(
    "layout", ["ddp", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("fsdp2", "tp", "fsdp2-tp", "3d"))]
)
def test_plain_torch_loads_what_agents_wrote(layout, tmp_path, fork_server):
    where = str(tmp_path / "check points")
    job = DurableJob(tmp_path / "job", fork_server, layout, where=where, config=ranks_of(layout))
    job.run()
    step = require_equal(job, where)
    assert step > 0
    written = job.events("checkpoint_written")
    assert written[-1]["step"] == step
    require_exported_equal(job, where, tmp_path / "exported")
    if layout == "fsdp2":
        _load_into_half_as_many_ranks(job, where, tmp_path)


def _load_into_half_as_many_ranks(job: DurableJob, where: str, folder: Path) -> None:
    newest = manifests(where)[0]
    expected = job.trial.out / f"version-{newest.step}-rank-0.pt"
    arguments = ["--layout", job.layout, "--out", str(folder), "--load", str(Path(where) / newest.name)]
    run_ranks(SCRIPT, [*arguments, "--expect", str(expected)], WORLD[job.layout] // 2, folder / "console.log")


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["ddp", "fsdp2", "tp", "3d"])
def test_job_begins_from_the_newest_one_bit_for_bit(layout, tmp_path, fork_server):
    where = str(tmp_path / "checkpoints")
    whole = DurableJob(tmp_path / "whole", fork_server, layout, steps=8, config=ranks_of(layout))
    whole.run()
    first = DurableJob(
        tmp_path / "first",
        fork_server,
        layout,
        steps=4,
        where=where,
        config={**ranks_of(layout), "durable_every": "1h"},
    )
    first.run()
    step = manifests(where)[0].step
    second = DurableJob(
        tmp_path / "second", fork_server, layout, steps=8, where=where, config={**ranks_of(layout), "resume": "auto"}
    )
    second.run()
    assert second.events("planned")[0]["checkpoint"] == manifests_of(first, where)
    assert 0 < step <= 4
    for rank, losses in second.losses().items():
        assert sorted(losses) == list(range(step, 8))
        assert losses == {number: loss for number, loss in whole.losses()[rank].items() if number >= step}
        for name, (tensor, _) in whole.expected(8, rank).items():
            assert second.expected(8, rank)[name][0].equal(tensor), name


def manifests_of(job: DurableJob, where: str) -> str:
    """The name of the last one that the job wrote."""
    return str(job.events("checkpoint_written")[-1]["name"])
