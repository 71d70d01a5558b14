"""Whether the kernel's out-of-memory killer may be behind a SIGKILL. Nobody is told so: it is read off its counters.

The counter of the own cgroup where there is one, else the machine's: then the victim may have been somebody else's.
"""

from __future__ import annotations

import signal
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_MACHINE = Path("/proc/vmstat")


class OomWatch:
    """Counts from its making on."""

    def __init__(self, counters: tuple[tuple[Path, str], ...] | None = None) -> None:
        """`counters`: files with a line `oom_kill N`, and whose they are in words. The first that can be read."""
        candidates = _own_counters() if counters is None else counters
        self._counter = next(((path, whose) for path, whose in candidates if _read(path) is not None), None)
        self._before = _read(self._counter[0]) if self._counter else None

    def explain(self, code: int) -> str:
        """Of an exit code, as subprocess gives it: how the process ended, and what may be behind it."""
        if code >= 0:
            return f"exited with code {code}"
        ended = f"killed by {signal.Signals(-code).name}"
        return ended + self._hint() if -code == signal.SIGKILL else ended

    def _hint(self) -> str:
        count = _read(self._counter[0]) if self._counter else None
        if self._counter is None or count is None or self._before is None or count <= self._before:
            return ""
        hit, self._before = count - self._before, count
        return f" (out of memory? the kernel has killed {hit} for want of it {self._counter[1]})"


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
