"""Weights & Biases offline: the files of a run show which steps they have. Tests use processes: wandb leaves one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("wandb", reason="needs the package wandb")
from waiting import LIMIT_S

from deadpool.errors import ConfigError
from deadpool.journal import Run, WandB
from deadpool.journal.trackers import HistoryFile

WRITE = """
import json, os, sys, time
import psutil
from deadpool.journal import Entry, Run, WandB
first, last, how = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
quiet = {"silent": True, "x_disable_stats": True, "x_disable_meta": True, "x_disable_machine_info": True}
sink = WandB("tests", id="one", dir=sys.argv[1], mode="offline", settings=quiet)
sink.open(Run("aa", 0))
values = lambda step: json.dumps({"loss": step / 3, "text": "x" * 300, "nan": float("nan")})
entries = [Entry(step, 1.0, values(step)) for step in range(first, last)]
services = psutil.Process().children(recursive=True) if how == "die" else []
for service in services:
    service.suspend()
doubtful = sink.write(entries)
for service in services:
    service.kill()
if how == "die":
    os.kill(os.getpid(), 9)
deadline = time.monotonic() + 240
while how == "wait" and sink.write(entries) < last and time.monotonic() < deadline:
    time.sleep(0.05)
print(sink.write(entries), flush=True)
if how == "wait":
    os.kill(os.getpid(), 9)
sink.close()
"""


def write(folder: Path, first: int, last: int, how: str = "end") -> str:
    command = [sys.executable, "-c", WRITE, str(folder), str(first), str(last), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode in (0, -9), done.stderr
    return done.stdout


def rows(folder: Path) -> list[dict]:
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for path in sorted(folder.glob("wandb/offline-run-*-one/run-one.wandb")):
        for data in HistoryFile(path)._records(path.read_bytes()[7:]):
            record = Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                found.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in items})
    return found


@pytest.mark.thorough
def test_whoever_comes_skips_what_is_there(tmp_path):
    write(tmp_path, 0, 4)
    write(tmp_path, 2, 6)
    found = rows(tmp_path)
    assert [row["_step"] for row in found] == list(range(6))
    assert [row["loss"] for row in found] == [step / 3 for step in range(6)]


@pytest.mark.thorough
def test_writer_killed_before_and_after_its_rows_are_on_the_disk(tmp_path):
    """With 200 rows of 400 bytes, records cross the blocks of the file. The first time wandb's own process stands still
    and dies too."""
    write(tmp_path, 0, 200, "die")
    there = [row["_step"] for row in rows(tmp_path)]
    assert there == list(range(len(there))) and len(there) < 200, "what was handed over is not durable"
    assert write(tmp_path, 0, 200, "wait").split() == ["200"]
    write(tmp_path, 100, 205)
    assert [row["_step"] for row in rows(tmp_path)] == list(range(205))


def test_package_that_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"install torch-deadpool\[wandb\]"):
        WandB("tests", dir=tmp_path).open(Run("aa", 0))
