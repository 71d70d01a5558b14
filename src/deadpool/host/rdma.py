"""What of this machine could carry copies by RDMA: its devices, and the library NIXL. Nothing is imported for it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DEVICES = Path("/sys/class/infiniband")
INSTALL = "pip install 'torch-deadpool[rdma]'"
_BUILDS = ("nixl_cu13", "nixl_cu12")
"""The packages that hold the library. The package `nixl` picks one of them, but imports torch for that."""


def rdma_devices(folder: Path = DEVICES) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def nixl_build() -> str | None:
    """The package to import NIXL from; None: it is not installed."""
    return next((name for name in _BUILDS if importlib.util.find_spec(name) is not None), None)
