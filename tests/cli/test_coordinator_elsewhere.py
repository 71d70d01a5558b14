"""A coordinator on another node than the first: its environment tells it all that it needs to serve the job."""

from __future__ import annotations

import json

import pytest
from command import await_true, deadpool, started

from deadpool.wire.secret import SECRET_FILE_VARIABLE, SECRET_VARIABLE
from deadpool.wire.tls import TLS_VARIABLE


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
        await_true((folder / "job.json").exists, "the coordinator")
        assert json.loads((folder / "job.json").read_text())["tls"] == tls
        assert not (folder / "secret").exists(), "the job has one already"
        assert "phase" in json.loads(deadpool("status", "--run-dir", folder, "--json").stdout)
        secret.write_text("t" * 32)
        stranger = deadpool("status", "--run-dir", folder, "--json")
        assert stranger.returncode != 0 and not stranger.stdout
