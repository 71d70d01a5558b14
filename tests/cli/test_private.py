"""A running job seen by another user of the machine: no file to read, no secret on a command line, no open port."""

from __future__ import annotations

import json
import os
import stat

import psutil
import pytest
from command import WAITING_SCRIPT, deadpool, started
from waiting import wait_until


@pytest.fixture
def careless():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.thorough
@pytest.mark.parametrize("tls", ["off", "ephemeral"])
def test_job_is_private(tmp_path, careless, tls):
    if tls != "off":
        pytest.importorskip("cryptography")
    ranks, run_dir = tmp_path / "ranks", tmp_path / "run"
    ranks.mkdir()
    job = ["run", "--run-dir", run_dir, "--nodes", 2, "--interface", "lo", "--tls", tls, WAITING_SCRIPT, ranks]
    with started(*job, output=tmp_path / "out") as process:
        wait_until(lambda: len(list(ranks.iterdir())) == 2, "both ranks")
        assert json.loads(deadpool("status", run_dir, "--json").stdout)["phase"] == "running"
        secret = (run_dir / "secret").read_text()
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        assert len(family) > 4
        assert not any(secret in " ".join(member.cmdline()) for member in family)
        listening = [c for member in family for c in member.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert {c.laddr.ip for c in listening} == {"127.0.0.1"}, listening
        files = list(run_dir.rglob("*"))
        assert {"secret", "job.json", "events.jsonl", "logs"} < {file.name for file in files}
        assert [str(file) for file in files if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)] == []
        assert list(run_dir.glob("logs/*.log"))


def test_unknown_interface_is_refused_before_anything_starts(tmp_path):
    done = deadpool("run", "--run-dir", tmp_path / "run", "--interface", "wlan9", WAITING_SCRIPT)
    assert done.returncode == 2 and "give one of" in done.stderr and "lo (127.0.0.1)" in done.stderr
