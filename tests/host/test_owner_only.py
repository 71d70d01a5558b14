from __future__ import annotations

import os
import stat

import pytest

from deadpool.control.launch.run_dir import RunDir
from deadpool.events.log import EventLog
from deadpool.host.private_files import make_private_folder, open_private
from deadpool.protocol.identity import Address


@pytest.fixture(autouse=True)
def careless():
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mode", ["w", "a", "ab"])
def test_file_is_its_owners_whatever_the_umask(tmp_path, mode):
    path = tmp_path / "file"
    with open_private(path, mode):
        pass
    assert mode_of(path) == 0o600


def test_file_that_was_there_is_closed_to_others(tmp_path):
    path = tmp_path / "file"
    path.touch(0o666)
    with open_private(path, "a"):
        assert mode_of(path) == 0o600


def test_folder_of_the_user_is_left_as_it_is(tmp_path):
    tmp_path.chmod(0o755)
    make_private_folder(tmp_path)
    make_private_folder(tmp_path / "new")
    assert (mode_of(tmp_path), mode_of(tmp_path / "new")) == (0o755, 0o700)


def test_everything_in_a_run_folder_is_its_owners(tmp_path):
    run_dir = RunDir.create(tmp_path / "run")
    run_dir.make_secret()
    run_dir.announce(Address(host="h", port=1), tls="off")
    log = EventLog(run_dir.events)
    log.start()
    log.close()
    modes = {path.name: mode_of(path) for path in (run_dir.path, *run_dir.path.iterdir())}
    files = {"secret", "job.json", "events.jsonl"}
    assert modes == {"run": 0o700, "logs": 0o700, **dict.fromkeys(files, 0o600)}
