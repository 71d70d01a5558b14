"""A coordinator on another node than the first: its environment tells it all that it needs to serve the job."""

from __future__ import annotations

import contextlib
import json

import pytest
from command import WAITING_SCRIPT, deadpool, started
from ports import reserved_ports
from waiting import LIMIT_S, wait_until

from deadpool.config.environment import SECRET_FILE_VARIABLE, SECRET_VARIABLE, TLS_VARIABLE
from deadpool.control.launch.run_dir import RunDir


@pytest.mark.parametrize("tls", ["off", "ephemeral"])
def test_coordinator_serves_with_the_credentials_of_its_environment(tmp_path, monkeypatch, tls):
    if tls != "off":
        pytest.importorskip("cryptography")
    secret, folder = tmp_path / "handed-out", tmp_path / "own"
    secret.write_text("s" * 32)
    secret.chmod(0o600)
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    monkeypatch.setenv(SECRET_FILE_VARIABLE, str(secret))
    monkeypatch.setenv(TLS_VARIABLE, tls)
    with started("coordinator", "--nodes", 1, "--run-dir", folder, output=tmp_path / "out"):
        wait_until((folder / "job.json").exists, "the coordinator")
        assert json.loads((folder / "job.json").read_text())["tls"] == tls
        assert not (folder / "secret").exists(), "the job has one already"
        assert "phase" in json.loads(deadpool("status", folder, "--json").stdout)
        secret.write_text("t" * 32)
        outside = deadpool("status", folder, "--json")
        assert outside.returncode != 0 and not outside.stdout


@pytest.mark.thorough
def test_coordinators_that_share_nothing_but_the_secret(tmp_path, monkeypatch):
    """Each in a folder of its own, as on machines of their own."""
    secret = tmp_path / "handed-out"
    secret.write_text("s" * 32)
    secret.chmod(0o600)
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    monkeypatch.setenv(SECRET_FILE_VARIABLE, str(secret))
    folders = [tmp_path / "first", tmp_path / "second"]
    with reserved_ports(2) as ports, contextlib.ExitStack() as running:
        places = [f"127.0.0.1:{port}" for port in ports]
        coordinators = [
            running.enter_context(coordinator(place, places, folder))
            for place, folder in zip(places, folders, strict=True)
        ]
        for name in ("n0", "n1", "n2"):
            running.enter_context(agent(name, places, tmp_path))
        wait_until(lambda: len(nodes_of(folders[0])) == 3, "all nodes at the first")
        wait_until(lambda: len(list(tmp_path.glob("rank*"))) == 3, "all ranks")
        assert not (folders[1] / "job.json").exists()
        coordinators[0].kill()
        wait_until(lambda: len(nodes_of(folders[1])) == 3, "all nodes at the second")


def test_coordinator_in_the_folder_of_a_job_that_has_ended_begins_a_new_one(tmp_path):
    """One that was killed left no such word: the next one takes its job over."""
    folder = RunDir(tmp_path / "run")
    begin = ("coordinator", "--nodes", 1, "--run-dir", folder.path)
    with started(*begin, output=tmp_path / "first") as first:
        wait_until(lambda: folder.is_led_by(first.pid), "the first")
        first.terminate()
        assert first.wait(LIMIT_S) == 1
    assert folder.has_ended()
    with started(*begin, output=tmp_path / "second") as second:
        wait_until(lambda: folder.is_led_by(second.pid), "the second")
    assert not folder.has_ended() and RunDir(folder.path / "earlier-1").has_ended()
    assert "earlier job" in (tmp_path / "second").read_text()
    with started(*begin, output=tmp_path / "third"):
        wait_until(lambda: "listens" in (tmp_path / "third").read_text(), "the third")
    assert folder.is_led_by(second.pid), "it waits for nodes of the job of the second"


def coordinator(place, places, folder):
    where = ("--port", place.rpartition(":")[2], "--coordinators", ",".join(places), "--run-dir", folder)
    return started("coordinator", "--nodes", 3, *where, output=folder.with_suffix(".log"))


def agent(name, places, folder):
    where = ("--join", ",".join(places), "--logs", folder / name)
    return started("agent", "--name", name, *where, WAITING_SCRIPT, folder, output=folder / f"{name}.log")


def nodes_of(folder):
    told = deadpool("status", folder, "--json").stdout
    return json.loads(told)["nodes"] if told else []
