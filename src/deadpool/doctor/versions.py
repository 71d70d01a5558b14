"""Which versions this node has, without importing what is large: torch takes seconds."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import subprocess
import sys
from pathlib import Path

from deadpool import __version__
from deadpool.doctor.finding import Facts, Finding

COMPARED = {"deadpool": "DeadPool", "python": "Python", "torch": "torch", "nccl": "NCCL", "driver": "NVIDIA driver"}
"""Facts that have to be the same on every node, and what people call them."""

_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
_DRIVER = Path("/proc/driver/nvidia/version")
_ASK_TORCH = """
import torch
nccl = torch.cuda.nccl.version() if torch.cuda.is_available() else ()
print(torch.__version__, ".".join(map(str, nccl)))
"""


def check_versions() -> tuple[Facts, list[Finding]]:
    facts: Facts = {"deadpool": __version__, "python": platform.python_version(), "torch": _installed("torch")}
    nccl = next((found for name in _NCCL if (found := _installed(name)) is not None), None)
    facts |= {"nccl": nccl, "driver": driver_version(), "kernel": platform.release()}
    if facts["torch"] is None:
        do = f"pip install torch for {sys.executable}, or start the doctor with the job's own Python"
        return facts, [Finding(check="versions", what="torch is not installed", do=do)]
    return facts, []


def check_import() -> tuple[Facts, list[Finding]]:
    """torch itself: its import fails where a library does not fit, and it knows the NCCL that it was built with."""
    done = subprocess.run([sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
        do = "run `python -c 'import torch'` on this node, and repair its installation"
        return {}, [Finding(check="versions", what=f"torch cannot be imported: {lines[-1]}", do=do)]
    torch, _, nccl = done.stdout.strip().partition(" ")
    return {"torch": torch} | ({"nccl": nccl} if nccl else {}), []


def driver_version() -> str | None:
    try:
        found = re.search(r"\b(\d{3,}\.[\d.]+)\b", _DRIVER.read_text())
    except OSError:
        return None
    return found[1] if found else None


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
