"""Checkpoints in an object store that speaks S3: moto's server on loopback, through fsspec and s3fs."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from durable_job import DurableJob, manifests
from unprotected import _free_port

from deadpool.durable.reading import faults_of
from deadpool.durable.store import open_store


@pytest.fixture
def bucket(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    s3fs = pytest.importorskip("s3fs", reason="needs s3fs: pip install 'torch-deadpool[durable]'")
    pytest.importorskip("flask_cors", reason="needs moto[server]")
    address = f"http://127.0.0.1:{_free_port()}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", address.rpartition(":")[2]]
    with (tmp_path / "moto.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _await(address)
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("bucket")
        yield "s3://bucket/check points"
    finally:
        server.kill()
        server.wait()


def _await(address: str) -> None:
    deadline = time.monotonic() + 60.0
    while True:
        try:
            urllib.request.urlopen(address, timeout=5.0)
            return
        except urllib.error.URLError:
            assert time.monotonic() < deadline, "moto's server did not start"
            time.sleep(0.2)


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_job_writes_to_s3_and_another_begins_from_it(bucket, tmp_path, fork_server):
    shape = {"nodes": 1, "nproc_per_node": 2, "holders": 0}
    whole = DurableJob(tmp_path / "whole", fork_server, steps=8, config=shape)
    whole.run()
    first = DurableJob(tmp_path / "first", fork_server, steps=4, where=bucket, config=shape)
    first.run()
    newest = manifests(bucket)[0]
    assert faults_of(open_store(bucket), newest) == []
    second = DurableJob(tmp_path / "second", fork_server, steps=8, where=bucket, config={**shape, "resume": "must"})
    second.run()
    assert second.events("planned")[0]["checkpoint"] == newest.name
    for rank, losses in second.losses().items():
        assert losses == {step: loss for step, loss in whole.losses()[rank].items() if step >= newest.step}
        assert losses
