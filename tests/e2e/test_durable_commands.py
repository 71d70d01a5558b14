"""`deadpool durable` beside a running job: what is asked for is written, named, listed and verified."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from durable_job import DurableJob, await_some_checkpoint, manifests
from typer.testing import CliRunner

from deadpool.cli.main import app
from deadpool.control.launch.launcher import running
from deadpool_lab.workload.run import LIMIT_S

SMALL = {"nodes": 1, "holders": 0}


def durable(*words: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as people call it."""
    command = [sys.executable, "-m", "deadpool.cli.main", "durable", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


def inside(*words: str) -> tuple[int, str]:
    """In this process, which has imported everything: exit code and output."""
    result = CliRunner().invoke(app, ["durable", *words])
    return result.exit_code, result.output


def run_folder(job: DurableJob) -> list[str]:
    return [str(job.trial.job.run_dir.path)]


def test_job_without_a_store_refuses(tmp_path, fork_server):
    job = DurableJob(tmp_path, fork_server, steps=10**6, step_s=0.2, config=SMALL)
    with running(job.trial.job):
        job.trial.await_event("planned")
        refused = durable("now", *run_folder(job))
    assert refused.returncode == 2
    assert refused.stderr.startswith("deadpool: no checkpoint can be written: this job was started without --durable,")
    ended = durable("now", *run_folder(job))
    assert ended.returncode == 2
    assert "has ended" in ended.stderr


@pytest.mark.thorough
def test_checkpoints_are_asked_for_listed_and_verified(tmp_path, fork_server):
    where = tmp_path / "check points"
    job = DurableJob(tmp_path / "job", fork_server, steps=10**6, step_s=0.2, where=str(where), config=SMALL)
    with running(job.trial.job):
        first = asks_and_waits(job)
        signals_the_coordinator(job)
        asks_without_waiting(job)
    names = [event["name"] for event in job.events("checkpoint_written")]
    assert names[0] == first
    newest_first = names[::-1]
    lists(where, newest_first)
    verifies(where, newest_first)


def asks_and_waits(job: DurableJob) -> str:
    """Returns the name of the checkpoint."""
    asked = durable("now", *run_folder(job))
    assert asked.returncode == 0, asked.stderr
    newest = manifests(job.where)[0]
    assert asked.stdout == f"checkpoint after {newest.step} steps: {newest.name}\n"
    return newest.name


def signals_the_coordinator(job: DurableJob) -> None:
    assert job.trial.job.coordinators is not None
    os.kill(job.trial.job.coordinators.leading().pid, signal.SIGUSR1)
    await_some_checkpoint(job, 2)


def asks_without_waiting(job: DurableJob) -> None:
    asked = durable("now", "--no-wait", *run_folder(job))
    assert (asked.returncode, asked.stdout, asked.stderr) == (0, "", "")
    await_some_checkpoint(job, 3)


def lists(where: Path, names: list[str]) -> None:
    torn = where / "step-000000999-torn"
    torn.mkdir()
    (torn / "__0_0.distcp").write_bytes(b"half")
    lines = inside("list", str(where))[1].splitlines()
    assert [line.split(":")[0] for line in lines] == [*names, torn.name]
    assert lines[-1] == f"{torn.name}: not complete"
    *complete, last = [json.loads(line) for line in inside("list", str(where), "--json")[1].splitlines()]
    assert last == {"name": torn.name, "complete": False}
    assert [(each["name"], each["complete"]) for each in complete] == [(name, True) for name in names]
    assert complete[0]["step"] > complete[-1]["step"] > 0
    assert (complete[0]["nodes"], complete[0]["nproc_per_node"]) == (1, 1)


def verifies(where: Path, names: list[str]) -> None:
    assert inside("verify", str(where)) == (0, "".join(f"{name}: as written\n" for name in names))
    path = where / names[0] / "__0_0.distcp"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    code, output = inside("verify", str(where))
    assert code == 1
    assert output.startswith(f"{names[0]}: DAMAGED\n  __0_0.distcp: does not match its checksum\n{names[1]}: as")
    assert inside("verify", str(where), names[1])[0] == 0
    assert inside("verify", str(where), names[0])[0] == 1
