"""What durable checkpoints are for, and what must not hurt: total losses, and stores that fail, fill up or hang."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from durable_job import DurableJob, await_some_checkpoint, manifests
from small_disk import small_disk

from deadpool.control.launch.launcher import running
from deadpool.errors import JobFailed

ROUNDS = int(os.environ.get("DURABLE_ROUNDS", "20"))


def same_as(whole: DurableJob, *jobs: DurableJob) -> None:
    """Every loss that any of the jobs computed, and the final state of the last one."""
    last = max(len(losses) for losses in whole.losses().values())
    for job in jobs:
        for rank, losses in job.losses().items():
            assert losses == {step: whole.losses()[rank][step] for step in losses}
    for rank in whole.losses():
        for name, (tensor, _) in whole.expected(last, rank).items():
            assert jobs[-1].expected(last, rank)[name][0].equal(tensor), (rank, name)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_everything_is_killed_while_it_writes(tmp_path, fork_server):
    """Again and again, at any moment of a write. Each job begins from the newest complete checkpoint."""
    rng = random.Random(18)
    where, steps, shape = str(tmp_path / "checkpoints"), 10 * ROUNDS, {"nodes": 1, "nproc_per_node": 2, "holders": 0}
    whole = DurableJob(tmp_path / "whole", fork_server, steps=steps, config=shape)
    whole.run()
    jobs: list[DurableJob] = []
    for number in range(ROUNDS):
        newest = manifests(where)[0] if number else None
        job = DurableJob(
            tmp_path / f"job-{number}",
            fork_server,
            steps=steps,
            step_s=0.2,
            where=where,
            config={**shape, "durable_every": "1 steps", "resume": "auto"},
        )
        with running(job.trial.job):
            job.trial.await_event("checkpoint_begun", rng.choice((1, 1, 2)) if number else 2)
            time.sleep(3.0 * rng.random() ** 2)  # to any moment of the write, most often an early one
            job.kill_everything()
        if newest is not None:
            assert job.events("planned")[0]["checkpoint"] == newest.name
        assert manifests(where)
        jobs.append(job)
    steps_begun_from = [job.events("planned")[0]["step"] for job in jobs]
    assert steps_begun_from == sorted(steps_begun_from) and steps_begun_from[-1] > 0
    last = DurableJob(tmp_path / "last", fork_server, steps=steps, where=where, config={**shape, "resume": "must"})
    last.run()
    same_as(whole, *jobs, last)


@pytest.mark.thorough
def test_every_copy_of_a_rank_is_lost_in_mid_run(tmp_path, fork_server):
    """A node and the holder of its copies die at once. The job goes back to its checkpoint by itself."""
    where, shape = str(tmp_path / "checkpoints"), {"nodes": 3, "node_timeout_s": 10.0}
    whole = DurableJob(tmp_path / "whole", fork_server, steps=100, config=shape)
    whole.run()
    job = DurableJob(
        tmp_path / "job",
        fork_server,
        steps=100,
        step_s=1.0,
        where=where,
        config={**shape, "spares": 2, "durable_every": "2 steps"},
    )
    with running(job.trial.job):
        await_some_checkpoint(job)
        for node in ("n0", "n1"):
            job.trial.job.kill_node(node)
        (job.trial.out / "hurry").touch()
        assert job.trial.job.wait(job.trial.deadline_s) == 0
    planned = job.events("planned")
    assert planned[-1]["checkpoint"] in [event["name"] for event in job.events("checkpoint_written")]
    assert {"n0", "n1"}.isdisjoint(planned[-1]["seats"])
    same_as(whole, job)


@pytest.mark.thorough
def test_checkpoints_are_damaged(tmp_path, fork_server):
    """One with a missing file is passed over, and so is one with changed bytes, which is found only when it is loaded.
    Where none is left, the job ends with its name, and not after retries without end."""
    where = str(tmp_path / "checkpoints")

    def job(name: str, steps: int) -> DurableJob:
        config = {"nodes": 1, "holders": 0, "resume": "auto"}
        return DurableJob(tmp_path / name, fork_server, steps=steps, where=where, config=config)

    for name, steps in (("first", 3), ("second", 6)):
        job(name, steps).run()
    gone, older = manifests(where)
    (Path(where) / gone.name / "__0_0.distcp").unlink()
    third = job("third", 6)
    third.run()
    (skipped,) = third.events("checkpoint_skipped")
    assert (skipped["name"], skipped["reason"]) == (gone.name, "__0_0.distcp is missing")
    assert third.events("planned")[0]["checkpoint"] == older.name
    assert sorted(third.losses()[0]) == list(range(older.step, 6))
    newest = manifests(where)[0]
    assert newest.name == third.events("checkpoint_written")[-1]["name"]
    damage(Path(where) / newest.name)
    fourth = job("fourth", 6)
    fourth.run()
    (skipped,) = fourth.events("checkpoint_skipped")
    assert skipped["name"] == newest.name and "damaged" in skipped["reason"]
    assert fourth.events("planned")[-1]["checkpoint"] == older.name
    assert sorted(fourth.losses()[0]) == list(range(older.step, 6))
    for each in manifests(where):
        if each.name != gone.name and each.name != newest.name:
            damage(Path(where) / each.name)
    fifth = job("fifth", 8)
    with pytest.raises(JobFailed, match="ended with code 1"):
        fifth.trial.run()
    (failed,) = fifth.events("failed")
    assert "there is no older one to go back to" in failed["reason"]
    assert fifth.losses() == {}


def damage(checkpoint: Path) -> None:
    path = checkpoint / "deadpool" / "rank-0.record"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def trains_on(job: DurableJob) -> list[dict[str, Any]]:
    """The job completes. Returns what the operator was told."""
    job.run()
    assert all(sorted(losses) == list(range(job.steps)) for losses in job.losses().values())
    assert job.events("checkpoint_written") == []
    return job.events("checkpoint_failed")


@pytest.mark.thorough
def test_store_fails(tmp_path, fork_server):
    (tmp_path / "file").touch()
    job = DurableJob(
        tmp_path / "job", fork_server, where=str(tmp_path / "file" / "below"), config={"nodes": 1, "holders": 0}
    )
    failed = trains_on(job)
    assert "NotADirectory" in failed[0]["reason"] or "FileExists" in failed[0]["reason"]
    assert "NO CHECKPOINT" in job.trial.console()


@pytest.mark.thorough
def test_store_fills_up(tmp_path, fork_server):
    with small_disk(tmp_path / "small") as disk:
        where = str(disk.path)
        job = DurableJob(tmp_path / "job", fork_server, where=where, config={"nodes": 1, "holders": 0})
        assert "No space left" in trains_on(job)[0]["reason"]
        assert manifests(where) == []


@pytest.fixture
def silent_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An object store that takes connections and never answers."""
    pytest.importorskip("s3fs", reason="needs s3fs: pip install 'torch-deadpool[durable]'")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
        yield "s3://bucket/checkpoints"


@pytest.mark.thorough
def test_store_hangs(tmp_path, fork_server, silent_server):
    config = {"nodes": 1, "holders": 0, "durable_timeout_s": 20.0, "durable_every": "1 steps"}
    job = DurableJob(tmp_path / "job", fork_server, steps=60, step_s=0.5, where=silent_server, config=config)
    failed = trains_on(job)
    assert "did not write within 20 s" in failed[0]["reason"]
    assert job.events("checkpoint_late")[0]["nodes"] == "n0"
