"""A job's folder says how its job is spoken to, to commands as well as to a coordinator that comes after the first."""

from __future__ import annotations

import errno
import json
import os
import socket

import pytest

from deadpool.control import machine_lease
from deadpool.control.folder_lock import lock_folder
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


def test_folder_is_locked_as_long_as_it_is_used(run_dir):
    lock = lock_folder(run_dir.path, "run_dir")
    with pytest.raises(ConfigError, match=rf"process {os.getpid()} of .* uses it; end that, or give another one"):
        lock_folder(run_dir.path, "run_dir")
    lock.close()
    lock_folder(run_dir.path, "run_dir").close()


def test_file_system_without_locks(run_dir, monkeypatch):
    """What the file says decides: it is empty once the job has ended, and a dead process of this machine has none."""

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(machine_lease.fcntl, "fcntl", refuse)
    lock_folder(run_dir.path, "run_dir").close()
    assert (run_dir.path / "lock").read_text() == ""
    (run_dir.path / "lock").write_text(json.dumps({"pid": 2**22 + 1, "host": socket.gethostname()}))
    lock_folder(run_dir.path, "run_dir").close()
    (run_dir.path / "lock").write_text(json.dumps({"pid": 1, "host": "elsewhere"}))
    with pytest.raises(ConfigError, match=r"process 1 of elsewhere, as far as .*lock says .*remove the file"):
        lock_folder(run_dir.path, "run_dir")
