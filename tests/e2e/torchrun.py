"""A script under plain torchrun, without DeadPool."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

_STACKS_S = 30.0


def torchrun(world_size: int, folder: Path, *script: str, timeout_s: float = 300, as_is: bool = False) -> str:
    """Runs it to its end and returns what it printed. `as_is`: as its users run it, so that it finds its process as
    they do; such a script must leave no DDP behind when it destroys its groups: see
    deadpool_lab/workload/plain_torch.py."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world_size)]
    command += [] if as_is else ["-m", "deadpool_lab.workload.plain_torch"]
    process = subprocess.Popen(
        [*command, *script],
        env={**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        printed, late = process.communicate(timeout=timeout_s)[0], ""
    except subprocess.TimeoutExpired:
        printed, late = _end(process), f"the ranks had not ended after {timeout_s:g} s and were killed:\n"
    text = late + printed.decode(errors="replace")
    assert process.returncode == 0 and not late, text
    return text


def _end(process: subprocess.Popen[bytes]) -> bytes:
    """Ends the ranks first, which print their stacks: torchrun ends when they have. Returns all that was printed."""
    for rank in _children(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, signal.SIGABRT)
    try:
        return process.communicate(timeout=_STACKS_S)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]


def _children(pid: int) -> list[int]:
    """A process is listed as the child of the thread that has started it."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
