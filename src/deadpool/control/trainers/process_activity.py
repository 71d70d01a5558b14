"""What the kernel says of trainers: whether they work, and whether it has killed them.

`ActivityWatcher`: whether the trainers of this node do anything, as the kernel sees it: their states, CPU time and
input and output.

A trainer counts with all of its descendants: a loader's workers read for it, a compiler's workers compile for it.
They are looked for only while the trainer itself is idle, because that takes a look at each of its threads.

`OomWatch`: whether the kernel's out-of-memory killer may have sent a SIGKILL. Only the kernel's counters tell.

The counter of this process's cgroup is read where there is one, else that of the machine; then the process that was
killed may have been another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from deadpool.protocol.inputs import Activity

LOOK_EVERY_S = 1.0
BUSY_SHARE = 0.03
"""The share of one core above which a process is busy. The threads of ours that wait in a trainer use less."""

BUSY_BYTES = 64 << 10
"""Read and written between two samples. The messages of a trainer that waits are fewer."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_FUTEX = {"x86_64": ("202", "449"), "aarch64": ("98", "449")}
"""The numbers of futex and futex_waitv."""
_STOPPED, _WORKS = "T", "RDt"
"""A process that is traced (t) is looked into by a debugger, one in D waits for a disk."""


@dataclass(frozen=True, slots=True)
class _Usage:
    cpu_s: float
    bytes: int

    def is_busy_since(self, before: _Usage, seconds: float) -> bool:
        return self.cpu_s - before.cpu_s > BUSY_SHARE * seconds or self.bytes - before.bytes > BUSY_BYTES


class ActivityWatcher:
    """Calls `report` with a trainer's name whenever its activity has changed."""

    def __init__(self, pids: Callable[[], Mapping[str, int]], report: Callable[[str, Activity], None]) -> None:
        self._pids, self._report = pids, report
        self._usage: dict[str, dict[int, _Usage]] = {}  # name -> process -> as of the last sample
        self._reported: dict[str, Activity] = {}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        sampled_at = loop.time()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now = loop.time()
            self.sample(now - sampled_at)
            sampled_at = now

    def sample(self, seconds: float) -> None:
        """`seconds`: since the last one."""
        pids = self._pids()
        for gone in self._reported.keys() - pids.keys():
            del self._reported[gone], self._usage[gone]
        for name, pid in pids.items():
            activity = self._activity(name, pid, seconds)
            if activity is not self._reported.get(name, Activity.ACTIVE):
                self._report(name, activity)
            self._reported[name] = activity

    def _activity(self, name: str, pid: int, seconds: float) -> Activity:
        before, self._usage[name] = self._usage.get(name, {}), {}
        for process in (pid, *_descendants(pid)):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                state, usage = _look_at(process)
                if process == pid and state == _STOPPED:
                    return Activity.STOPPED
                self._usage[name][process] = usage
                known = before.get(process)
                if state in _WORKS or known is None or usage.is_busy_since(known, seconds):
                    return Activity.ACTIVE
        return Activity.IDLE if _waits_for_a_thread(pid) else Activity.OUTSIDE


def _waits_for_a_thread(pid: int) -> bool:
    """Whether the system call that the process's main thread is in waits for another thread, as a lock, a queue and a
    collective on the CPU do. Where the kernel does not say it, it is assumed to wait for something else."""
    try:
        call = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    except OSError:
        return False
    return call in _FUTEX.get(platform.machine(), ())


def _look_at(pid: int) -> tuple[str, _Usage]:
    """Returns a process's state, and what it has used since it began. Its name comes first and may hold anything, even
    parentheses.
    """
    state, *numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user_ticks, system_ticks = map(int, numbers[10:12])
    return state, _Usage((user_ticks + system_ticks) / _TICKS_PER_S, _bytes_moved(pid))


def _bytes_moved(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except PermissionError:  # a process that has changed its user
        return 0
    return sum(int(line.partition(": ")[2]) for line in lines if line.startswith(("rchar", "wchar")))


def _descendants(pid: int) -> Iterator[int]:
    """A process is listed as the child of the thread that has started it."""
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                yield child
                yield from _descendants(child)


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
