"""A script under plain torchrun, without DeadPool."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def torchrun(world_size: int, folder: Path, *script: str, timeout_s: float = 90) -> str:
    """Runs it to its end and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world_size), *script],
        env={**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout_s,
    )
    printed = done.stdout.decode(errors="replace")
    assert done.returncode == 0, printed
    return printed
