"""What a newcomer's preparation removes stays, whichever way it removes it, and wherever it lies."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from test_file_guard import LATER, REHEARSE, VERSION, begin, seat  # noqa: F401

from deadpool.trainer.guards.kept_files import JobFolders, removed_by_command

NEWCOMER = seat(LATER, VERSION)


def by_hand() -> None:
    for path in Path("checkpoints").glob("*"):
        path.unlink()
    Path("checkpoints").rmdir()
    Path("checkpoints").mkdir()


WAYS: dict[str, Callable[[], object]] = {
    "remove": lambda: os.remove("checkpoints/1"),  # noqa: PTH107
    "rmtree": lambda: (shutil.rmtree("checkpoints"), Path("checkpoints").mkdir()),
    "glob and remove": by_hand,
    "system": lambda: os.system("mkdir -p other && rm -rf checkpoints/*"),
    "run": lambda: subprocess.run(["rm", "-rf", "checkpoints"], check=True),
    "shell": lambda: subprocess.check_call("cd . ; rm -r checkpoints", shell=True),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_files_of_the_job_stay_and_are_named(begin, way):  # noqa: F811
    reports = begin(NEWCOMER)
    way()
    assert Path("checkpoints/1").read_text() == "1" and set(reports.kinds) == {"remove"}
    reports.end()
    shutil.rmtree("checkpoints")
    assert not Path("checkpoints").exists(), "a live rank removes what it wants"


@pytest.mark.parametrize("way", ["system", "run", "shell"])
def test_commands_of_a_rehearsal_are_refused(begin, way):  # noqa: F811
    reports = begin(REHEARSE)
    with pytest.raises(PermissionError, match=r"if deadpool\.first_start:"):
        WAYS[way]()
    assert Path("checkpoints/1").exists() and set(reports.kinds) == {"remove"}


def test_other_commands_run(begin):  # noqa: F811
    reports = begin(NEWCOMER)
    assert os.system("true") == 0 and subprocess.check_output(["echo", "rm"]) == b"rm\n"
    Path("own").write_text("a")
    subprocess.run(["rm", "own"], check=True)
    assert not Path("own").exists() and reports.kinds == []


def test_paths_of_a_command_line():
    line = "set -e; sudo rm -rf /a/b '/c d' && truncate -s 0 log | X=1 mv old new || echo rm kept"
    assert list(removed_by_command(line)) == ["/a/b", "/c d", "0", "log", "old", "new"]
    assert list(removed_by_command(["bash", "-c", "rm one"])) == ["one"]
    assert list(removed_by_command("rm 'unfinished")) == []


def test_removals_count_outside_of_the_jobs_folders_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "/data/caches")
    folders = JobFolders(["train.py"])
    assert folders.may_hold("/data/run/checkpoints") and not folders.hold("/data/run/checkpoints")
    for path in ("/tmp/x", "/proc/1", "/usr/x", "/root/.cache/x", "/data/caches/x", "/data/run/x.lock"):
        assert not folders.may_hold(path)
