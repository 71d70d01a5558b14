"""The process that writes: what it answers, and that one which hangs is ended without hanging anything else."""

from __future__ import annotations

import queue
import socket
import threading
from pathlib import Path

import pytest
from checkpoint_maker import RANKS, RECORDING, MadeRank, finish_task, name_of

from deadpool.control.durable.checkpoint_files import CheckpointWriters
from deadpool.durable.manifest import PartTask, StagedCopy, complete_ones
from deadpool.durable.store import DirectoryStore
from deadpool.protocol.inputs import CheckpointFinished, PartWritten

WAIT_S = 300.0


def part_task(made: MadeRank, where: str) -> PartTask:
    staged = StagedCopy(fd=made.segment.fd, copy=made.copy, recording=RECORDING)
    return PartTask(where=where, name=name_of(3), nice=0, bytes_per_s=0.0, copies=(staged,))


def test_parts_and_manifest_by_processes(tmp_path: Path) -> None:
    results: queue.Queue[PartWritten | CheckpointFinished] = queue.Queue()
    writers = CheckpointWriters(results.put)
    made = [MadeRank(rank, 3) for rank in RANKS]
    for each in made:
        writers.start(part_task(each, str(tmp_path)))
        written = results.get(timeout=WAIT_S)
        assert isinstance(written, PartWritten) and written.failure == "" and written.bytes_written > 0
    writers.start(finish_task(str(tmp_path), 3, tuple(each.copy for each in made)))
    finished = results.get(timeout=WAIT_S)
    assert isinstance(finished, CheckpointFinished) and finished.failure == ""
    assert [manifest.step for manifest in complete_ones(DirectoryStore(tmp_path))] == [3]
    writers.close()
    for each in made:
        each.close()


def test_writer_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store takes the connection and never answers."""
    pytest.importorskip("s3fs", reason="needs s3fs: pip install 'torch-deadpool[durable]'")
    ended = threading.Event()
    results: queue.Queue[PartWritten | CheckpointFinished] = queue.Queue()
    writers, made = CheckpointWriters(results.put), MadeRank(0, 3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_S)
        for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
            monkeypatch.setenv(f"AWS_{name}", "none")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        writers.start(part_task(made, "s3://bucket/x"), ended.set)
        with server.accept()[0]:  # it has come so far, and waits
            writers.end(name_of(3))
            assert ended.wait(WAIT_S)
    writers.close()
    made.close()
    assert results.empty(), "a writer that gives up by itself says so"
