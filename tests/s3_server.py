"""An object store that speaks S3 on loopback: moto's server, in a process of its own, with one empty bucket."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import LIMIT_S, wait_until


@contextlib.contextmanager
def serving_s3(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Gives the name of the bucket, and sets what clients read from the environment."""
    pytest.importorskip("s3fs", reason="needs s3fs: pip install 'torch-deadpool[durable]'")
    pytest.importorskip("moto", reason="needs moto")
    pytest.importorskip("flask_cors", reason="needs flask-cors, for moto's server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (folder / "moto.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _await(address)
        for name, value in (("ENDPOINT_URL", address), ("ACCESS_KEY_ID", "none"), ("SECRET_ACCESS_KEY", "none")):
            monkeypatch.setenv(f"AWS_{name}", value)
        request = urllib.request.Request(f"{address}/bucket", method="PUT")
        urllib.request.urlopen(request, timeout=LIMIT_S).close()  # s3fs would keep threads in this process
        yield "bucket"
    finally:
        server.kill()
        server.wait()


def _await(address: str) -> None:
    def answers() -> bool:
        try:
            urllib.request.urlopen(address, timeout=LIMIT_S).close()
        except (urllib.error.URLError, OSError):
            return False
        return True

    wait_until(answers, "moto's server")
