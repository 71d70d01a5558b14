"""A job's folder says how its job is spoken to, to commands as well as to a coordinator that comes after the first."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import socket

import pytest

from deadpool.cli.start.coordinator import _lock
from deadpool.config.environment import SECRET_FILE_VARIABLE, SECRET_VARIABLE, TLS_VARIABLE
from deadpool.config.job_config import JobConfig
from deadpool.control.launch import folder_lock
from deadpool.control.launch.folder_lock import lock_folder
from deadpool.control.launch.run_dir import KEPT_FOLDER, RunDir
from deadpool.errors import ConfigError
from deadpool.events.event import read_events
from deadpool.host import private_files
from deadpool.protocol.identity import Address

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

    monkeypatch.setattr(private_files.fcntl, "fcntl", refuse)
    lock_folder(run_dir.path, "run_dir").close()
    assert (run_dir.path / "lock").read_text() == ""
    (run_dir.path / "lock").write_text(json.dumps({"pid": 2**22 + 1, "host": socket.gethostname()}))
    lock_folder(run_dir.path, "run_dir").close()
    (run_dir.path / "lock").write_text(json.dumps({"pid": 1, "host": "elsewhere"}))
    with pytest.raises(ConfigError, match=r"process 1 of elsewhere, as far as .*lock says .*remove the file"):
        lock_folder(run_dir.path, "run_dir")


def test_processes_of_one_job_share_a_folder_that_no_other_job_may_have(run_dir):
    """Several coordinators of a job may work in one folder; `deadpool run` may not begin there meanwhile."""
    first, second = (lock_folder(run_dir.path, "run_dir", shared=True) for _ in range(2))
    first.close()
    with pytest.raises(ConfigError, match="uses it"):
        lock_folder(run_dir.path, "run_dir")
    second.close()
    alone = lock_folder(run_dir.path, "run_dir")
    with pytest.raises(ConfigError, match="uses it"):
        lock_folder(run_dir.path, "run_dir", shared=True)
    alone.close()


def test_coordinator_of_several_keeps_another_job_out(run_dir):
    several = JobConfig(nodes=3, host="h", port=1, coordinators="h:1,h:2")
    held = [*_lock(run_dir, several, again=False), *_lock(run_dir, dataclasses.replace(several, port=2), again=False)]
    for config in (several, JobConfig()):
        with pytest.raises(ConfigError, match="uses it"):
            _lock(run_dir, config, again=False)
    for each in held:
        each.close()


def test_coordinator_that_is_started_again_makes_no_folder_for_its_lock(tmp_path):
    assert _lock(RunDir(tmp_path / "gone"), JobConfig(), again=True) == []
    assert not (tmp_path / "gone").exists()


@pytest.fixture
def no_locks(monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(private_files.fcntl, "fcntl", refuse)


@pytest.mark.parametrize("changed", ["boot", "since"])
def test_process_id_that_was_given_again(run_dir, no_locks, changed):
    """The file names a process that lives, as far as its number says, but it is another one by now."""
    owner = {"pid": os.getppid(), "host": socket.gethostname(), "boot": folder_lock._boot()}
    owner["since"] = folder_lock._start_of(os.getppid())
    (run_dir.path / "lock").write_text(json.dumps(owner))
    with pytest.raises(ConfigError, match=rf"process {os.getppid()} of"):
        lock_folder(run_dir.path, "run_dir")
    (run_dir.path / "lock").write_text(json.dumps(owner | {changed: {"boot": "another", "since": 1}[changed]}))
    lock_folder(run_dir.path, "run_dir").close()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("", False),
        ("planned completed", True),
        ("planned failed message_refused", True),
        ("failed took_over", False),  # of another coordinator, whose nodes did not hear the end
        ("completed planned", False),
    ],
)
def test_whether_the_job_of_a_folder_has_ended(run_dir, said, expected):
    run_dir.events.write_text("".join(json.dumps({"t": i, "what": w}) + "\n" for i, w in enumerate(said.split())))
    assert run_dir.has_ended() is expected


def test_log_of_an_earlier_job_is_put_away(run_dir):
    assert run_dir.put_earlier_job_away() is None
    kept = run_dir.logs / KEPT_FOLDER / "rank-0"
    for name in ("first", "second"):
        run_dir.announce(ADDRESS, tls="off")
        run_dir.events.write_text(f'{{"what": "{name}"}}\n')
        (run_dir.logs / "n0.0.log").write_text(name)
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(name)
        earlier = run_dir.put_earlier_job_away()
        assert [each["what"] for each in read_events(earlier.events)] == [name]
        assert earlier.is_known and (earlier.logs / "n0.0.log").read_text() == name
    assert sorted(path.name for path in run_dir.path.glob("earlier-*")) == ["earlier-1", "earlier-2"]
    assert not run_dir.events.exists() and not run_dir.is_known and kept.exists()
