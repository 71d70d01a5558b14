"""What a process takes of the host's memory for itself: pages that it shares with its fork server are left out."""

from __future__ import annotations

from pathlib import Path

_PRIVATE = ("Private_Clean:", "Private_Dirty:", "Private_Hugetlb:", "Swap:")


def private_bytes(pid: int, proc: Path = Path("/proc")) -> int | None:
    """None: it has ended, or the kernel does not say."""
    try:
        lines = (proc / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_PRIVATE))
