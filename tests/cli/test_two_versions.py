"""A real second version of the package, a copied source tree: coordinator, agent, command and data plane refuse it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from command import COMMAND, WAITING_SCRIPT, started
from waiting import LIMIT_S, wait_until

import deadpool
from deadpool.config.environment import SECRET_FILE_VARIABLE, SECRET_VARIABLE
from deadpool.errors import VersionMismatch
from deadpool.snapshot.transfer import TransferServer
from deadpool.wire.credentials import Credentials

OURS, OTHER = deadpool.__version__, "7.7.7"
SECRET = "s" * 32
_PUSH = """
import socket
from deadpool.snapshot.transfer.connection import Connection
from deadpool.snapshot.transfer.channel import authenticate
from deadpool.wire.credentials import Credentials
sock = socket.create_connection(("127.0.0.1", {port}))
connection = Connection(sock, "the holder", 300.0)
try:
    authenticate(connection, Credentials(b"{secret}"), "client")
finally:
    connection.close()
"""


@pytest.fixture
def other_tree(tmp_path: Path) -> Path:
    """The folder to import the other version from."""
    source, copy = Path(deadpool.__file__).parent, tmp_path / "other" / "deadpool"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / "__init__.py").read_text(encoding="utf-8")
    assert f'__version__ = "{OURS}"' in text
    (copy / "__init__.py").write_text(text.replace(OURS, OTHER), encoding="utf-8")
    return copy.parent


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "handed-out"
    file.write_text(SECRET)
    file.chmod(0o600)
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    monkeypatch.setenv(SECRET_FILE_VARIABLE, str(file))


def with_other(command: list[object], tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def events(folder: Path) -> list[dict[str, object]]:
    path = folder / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def refusals(folder: Path) -> list[str]:
    return [str(each["reason"]) for each in events(folder) if each["what"] == "connection_refused"]


def test_agent_and_command_of_another_version_are_refused(tmp_path, other_tree, secret):
    folder = tmp_path / "run"
    with started("coordinator", "--nodes", 1, "--run-dir", folder, output=tmp_path / "out"):
        wait_until((folder / "job.json").exists, "the coordinator")
        job = json.loads((folder / "job.json").read_text())
        place = f"{job['host']}:{job['port']}"
        agent = ["agent", "--join", place, "--logs", tmp_path / "logs", WAITING_SCRIPT, tmp_path]
        for command in (agent, ["status", folder]):
            refused = with_other(["-m", "deadpool.cli.main", *command], other_tree)
            while "no coordinator answers" in refused.stderr:  # within seconds; the machine may be busier than that
                refused = with_other(["-m", "deadpool.cli.main", *command], other_tree)
            assert refused.returncode == 2, refused.stdout + refused.stderr
            assert (
                f"the process at {place} is refused: it runs DeadPool {OURS}, and this process runs" in refused.stderr
            )
            assert f"DeadPool {OTHER}: install the same version on every node" in refused.stderr
        reasons = wait_until(lambda: refusals(folder), "the refusal in the log")
        assert f"it runs DeadPool {OTHER}, and this process runs DeadPool {OURS}" in reasons[0]
        wait_until(lambda: "REFUSED 1 connections" in (tmp_path / "out").read_text(), "the refusal on the console")
        assert not list(tmp_path.glob("rank*")), "the script has not begun"


def test_agent_ends_at_a_coordinator_of_another_version(tmp_path, other_tree, secret, monkeypatch):
    folder = tmp_path / "run"
    with monkeypatch.context() as there:
        there.setenv("PYTHONPATH", str(other_tree))
        coordinator = started("coordinator", "--nodes", 1, "--run-dir", folder, output=tmp_path / "out")
        coordinator.__enter__()
    try:
        wait_until((folder / "job.json").exists, "the coordinator")
        job = json.loads((folder / "job.json").read_text())
        place = f"{job['host']}:{job['port']}"
        agent = [*COMMAND, "agent", "--join", place, "--logs", tmp_path / "logs", WAITING_SCRIPT, tmp_path]
        refused = subprocess.run([str(word) for word in agent], capture_output=True, text=True, timeout=LIMIT_S)
        assert refused.returncode == 2
        assert f"it runs DeadPool {OTHER}, and this process runs DeadPool {OURS}" in refused.stderr
    finally:
        coordinator.__exit__(None, None, None)


def test_data_plane_refuses_another_version(other_tree, caplog):
    """Both ends: the holder logs it, and the sender's error is what `push_failed` reports."""
    served = threading.Event()

    def unused(*arguments: object) -> None:
        served.set()

    credentials = Credentials(SECRET.encode())
    server = TransferServer(
        host="127.0.0.1", credentials=credentials, open=unused, stored=unused, dropped=unused, find=unused
    )
    _, port = server.start()
    try:
        sender = with_other(["-c", _PUSH.format(port=port, secret=SECRET)], other_tree)
    finally:
        server.close()
    assert sender.returncode == 1
    assert f"{VersionMismatch.__name__}: the holder is refused: it runs DeadPool {OURS}" in sender.stderr
    assert f"this process runs DeadPool {OTHER}" in sender.stderr
    assert f"it runs DeadPool {OTHER}, and this process runs DeadPool {OURS}" in caplog.text
    assert not served.is_set()


def test_same_tree_in_another_place_is_the_same_version(tmp_path, secret):
    """Nothing but the version is compared: not the path, not the files."""
    tree = tmp_path / "copy" / "deadpool"
    shutil.copytree(Path(deadpool.__file__).parent, tree, ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path / "run"
    with started("coordinator", "--nodes", 1, "--run-dir", folder, output=tmp_path / "out"):
        wait_until((folder / "job.json").exists, "the coordinator")
        done = with_other(["-m", "deadpool.cli.main", "status", folder, "--json"], tree.parent)
        assert done.returncode == 0, done.stderr
        assert not refusals(folder)
