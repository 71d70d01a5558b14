"""Certificates for tests of TLS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def own_certificates(tmp_path: Path) -> Callable[[str], Path]:
    """A folder as a user would give it. Each name has an authority of its own, whose certificate is the node's too."""
    pytest.importorskip("cryptography")
    from deadpool.wire.credentials import make_certificate

    def make(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        pem = make_certificate().decode()
        begin = pem.index("-----BEGIN CERTIFICATE")
        (folder / "key.pem").write_text(pem[:begin])
        for file in ("cert.pem", "ca.pem"):
            (folder / file).write_text(pem[begin:])
        return folder

    return make
