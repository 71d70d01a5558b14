"""A job's folder says how its job is spoken to, to commands as well as to a coordinator that comes after the first."""

from __future__ import annotations

import json
import os

import pytest

from deadpool.control.run_dir import RunDir
from deadpool.environment import SECRET_FILE_VARIABLE, SECRET_VARIABLE, TLS_VARIABLE
from deadpool.errors import ConfigError
from deadpool.protocol.topology import Address

ADDRESS = Address(host="127.0.0.1", port=7)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in (SECRET_VARIABLE, SECRET_FILE_VARIABLE, TLS_VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run_dir(tmp_path) -> RunDir:
    return RunDir.create(tmp_path / "run")


def test_successor_in_the_folder_serves_as_the_job_is_used_to(run_dir):
    pytest.importorskip("cryptography")
    secret = run_dir.make_secret()
    run_dir.announce(ADDRESS, tls="ephemeral")
    successor, asking = run_dir.credentials(serving=True), run_dir.credentials()
    assert successor.secret == asking.secret == secret
    assert successor.tls is not None and successor.tls.server is not None
    assert asking.tls is not None and asking.tls.server is None


def test_what_a_coordinator_was_told_counts_before_anything_is_announced(run_dir):
    run_dir.make_secret()
    assert run_dir.credentials(serving=True, tls="off").tls is None
    with pytest.raises(ConfigError, match="not the run folder of a job"):
        run_dir.credentials(serving=True)


def test_folder_of_certificates_is_announced_for_processes_that_work_elsewhere(run_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_dir.announce(ADDRESS, tls="certificates", nodes=2)
    job = json.loads((run_dir.path / "job.json").read_text())
    announced = {"host": "127.0.0.1", "port": 7, "pid": os.getpid(), "tls": str(tmp_path / "certificates"), "nodes": 2}
    assert job == announced
    assert run_dir.tls() == str(tmp_path / "certificates") and run_dir.coordinator() == ADDRESS


def test_secret_is_not_made_up_by_who_only_reads(run_dir):
    run_dir.announce(ADDRESS, tls="off")
    with pytest.raises(ConfigError, match="cannot be read"):
        run_dir.credentials(serving=True)
