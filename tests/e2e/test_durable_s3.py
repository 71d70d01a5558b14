"""Checkpoints in an object store that speaks S3: moto's server on loopback, through fsspec and s3fs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from durable_job import DurableJob
from s3_server import serving_s3

from deadpool_lab.workload.run import LIMIT_S


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving_s3(tmp_path, monkeypatch) as name:
        yield f"s3://{name}/check points"


def deadpool(*words: str) -> str:
    """In a process of its own: s3fs keeps threads."""
    command = [sys.executable, "-m", "deadpool.cli.main", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT_S).stdout


@pytest.mark.thorough
def test_job_writes_to_s3_and_another_begins_from_it(bucket, tmp_path, fork_server):
    shape = {"nodes": 1, "nproc_per_node": 2, "holders": 0}
    whole = DurableJob(tmp_path / "whole", fork_server, steps=8, config=shape)
    whole.run()
    first = DurableJob(tmp_path / "first", fork_server, steps=4, where=bucket, config=shape)
    first.run()
    newest = json.loads(deadpool("durable", "list", bucket, "--json").splitlines()[0])
    assert "as written" in deadpool("durable", "verify", bucket)
    second = DurableJob(tmp_path / "second", fork_server, steps=8, where=bucket, config={**shape, "resume": "must"})
    second.run()
    assert second.events("planned")[0]["checkpoint"] == newest["name"]
    for rank, losses in second.losses().items():
        assert losses == {step: loss for step, loss in whole.losses()[rank].items() if step >= newest["step"]}
        assert losses
