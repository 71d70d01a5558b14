"""A disk of some kilobytes that a test fills and empties: a tmpfs of its own below the test's folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def empty(self) -> None:
        self._ballast.unlink()

    def make_read_only(self) -> None:
        """Files that are open for writing stay so: a view of the folder is mounted over it, which cannot be written."""
        subprocess.run(["mount", "-o", "bind,ro", self.path, self.path], check=True)

    def make_writable(self) -> None:
        subprocess.run(["umount", "--lazy", self.path], check=True)


@contextlib.contextmanager
def small_disk(path: Path, size: str = "256k") -> Iterator[SmallDisk]:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root and mount: a disk of its own cannot be mounted")
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "deadpool-test", path], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("a disk of its own cannot be mounted here")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)
