"""Checkpoints in an object store with a real S3 API, through fsspec and s3fs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("s3_program.py")


def test_checkpoints_in_s3(tmp_path, monkeypatch):
    """In a process of its own: the library keeps a thread and connections for good."""
    from s3_server import serving_s3

    with serving_s3(tmp_path, monkeypatch) as bucket:
        command = [sys.executable, "-W", "ignore", str(PROGRAM), f"s3://{bucket}/check points"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
