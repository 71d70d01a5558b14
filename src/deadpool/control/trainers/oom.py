"""Whether the kernel's out-of-memory killer may have sent a SIGKILL. Only the kernel's counters tell.

The counter of this process's cgroup is read where there is one, else that of the machine; then the process that was
killed may have been another one.
"""

from __future__ import annotations

import signal
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_MACHINE = Path("/proc/vmstat")


class OomWatch:
    """Counts from the moment that it is made."""

    def __init__(self, counters: tuple[tuple[Path, str], ...] | None = None) -> None:
        """`counters`: files with a line `oom_kill N`, each with words for where it counts. The first readable one is
        used."""
        candidates = _own_counters() if counters is None else counters
        self._counter = next(((path, whose) for path, whose in candidates if _read(path) is not None), None)
        self._before = _read(self._counter[0]) if self._counter else None

    def explain(self, code: int) -> str:
        """Says how a process ended, from its exit code as subprocess gives it, and what may have been the cause."""
        if code >= 0:
            return f"exited with code {code}"
        ended = f"killed by {signal.Signals(-code).name}"
        return ended + self._hint() if -code == signal.SIGKILL else ended

    def _hint(self) -> str:
        count = _read(self._counter[0]) if self._counter else None
        if self._counter is None or count is None or self._before is None or count <= self._before:
            return ""
        hit, self._before = count - self._before, count
        killed = "1 process" if hit == 1 else f"{hit} processes"
        return f" (out of memory? the kernel killed {killed} for lack of memory {self._counter[1]})"


def _own_counters() -> tuple[tuple[Path, str], ...]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    own = [_CGROUPS / line[3:].lstrip("/") / "memory.events" for line in lines if line.startswith("0::")]
    old = [line.split(":", 2)[2].lstrip("/") for line in lines if line.split(":")[1] == "memory"]
    own += [_CGROUPS / "memory" / path / "memory.oom_control" for path in old]
    return (*((path, "in this node's cgroup") for path in own), (_MACHINE, "on this machine"))


def _read(path: Path) -> int | None:
    try:
        words = [line.split() for line in path.read_text().splitlines()]
        return next((int(word[1]) for word in words if word[0] == "oom_kill"), None)
    except (OSError, ValueError):
        return None
