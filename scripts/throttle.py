"""Runs a command at half of the speed of the machine with two cores that the check is made for.

    python scripts/throttle.py COMMAND [ARGUMENTS...]

With root it makes a cgroup with a quota of CPU time, half of what there is and at most one core, and removes it when
the command has ended, however it has ended. Elsewhere the command gets a single core.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

CORES_OF_THE_CHECK = 2
PERIOD_US = 100_000
_PATIENCE_S = 5.0
_HANDED_ON = (signal.SIGTERM, signal.SIGHUP)


class Quota:
    """A cgroup that limits CPU time, of either version."""

    def __init__(self, parent: Path, version: int, home: Path) -> None:
        self._parent, self._version, self._home = parent, version, home
        self._folder = parent / f"deadpool-check-{os.getpid()}"

    def make(self) -> str:
        """Returns what it allows, in words."""
        self._folder.mkdir()
        try:
            allowed = min(_cores(), self._cores_of_parents(), CORES_OF_THE_CHECK) / 2
            quota_us = int(allowed * PERIOD_US)
            if self._version == 2:
                self._write("cpu.max", f"{quota_us} {PERIOD_US}")
            else:
                self._write("cpu.cfs_period_us", str(PERIOD_US))
                self._write("cpu.cfs_quota_us", str(quota_us))
        except OSError:
            self._folder.rmdir()
            raise
        return f"the cgroup {self._folder} gives it the time of {allowed:g} of {_cores()} cores"

    def enter(self) -> None:
        """For the process that is to become the command."""
        self._write("cgroup.procs", "0")

    def remove(self) -> None:
        """What the command has left running is moved out, at full speed again."""
        deadline = time.monotonic() + _PATIENCE_S
        while self._members() and time.monotonic() < deadline:
            time.sleep(0.05)
        while left := self._members():
            print(f"== speed: still running at the end: processes {' '.join(left)}", file=sys.stderr)
            for pid in left:
                self._move_out(pid)
        self._folder.rmdir()

    def _members(self) -> list[str]:
        return (self._folder / "cgroup.procs").read_text().split()

    def _move_out(self, pid: str) -> None:
        try:
            (self._home / "cgroup.procs").write_text(pid)
        except ProcessLookupError:
            return  # it has just ended

    def _write(self, name: str, value: str) -> None:
        (self._folder / name).write_text(value)

    def _cores_of_parents(self) -> float:
        """The tightest quota above; a container has one."""
        return min((_quota_of(folder, self._version) for folder in [self._parent, *self._parent.parents]), default=1e9)


def _quota_of(folder: Path, version: int) -> float:
    try:
        if version == 2:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / name).read_text() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    except OSError:
        return float("inf")
    return float("inf") if quota == "max" or int(quota) < 0 else int(quota) / int(period)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def quotas() -> list[Quota]:
    """Where a quota may be possible: below this process's own cgroup, or below the nearest one that may divide CPU."""
    mounts = [line.split()[1:4] for line in Path("/proc/mounts").read_text().splitlines()]
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, own = line.split(":", 2)
        for mount, kind, options in mounts:
            folder = Path(mount) / own.lstrip("/")
            if kind == "cgroup" and "cpu" in controllers.split(",") and "cpu" in options.split(","):
                found.append(Quota(folder, 1, folder))
            elif kind == "cgroup2" and not controllers:
                found += [Quota(each, 2, folder) for each in (folder, *folder.parents) if _divides_cpu(each)]
    return found


def _divides_cpu(folder: Path) -> bool:
    control = folder / "cgroup.subtree_control"
    return control.exists() and "cpu" in control.read_text().split()


def make_quota() -> Quota | None:
    for quota in quotas():
        try:
            print(f"== speed: {quota.make()}", flush=True)
        except OSError:
            continue  # not root, or a container that may not
        return quota
    return None


def take_one_core() -> None:
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    print(f"== speed: no cgroup with a quota can be made here, so everything runs on core {core}", flush=True)


def run(command: list[str], quota: Quota | None) -> int:
    """Ctrl-C reaches the command by itself; what else ends this process is handed on, as soon as there is a command."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON)
    process = subprocess.Popen(command, preexec_fn=lambda: _begin(quota))
    for number in _HANDED_ON:
        signal.signal(number, lambda received, _: process.send_signal(received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDED_ON)
    code = process.wait()
    return code if code >= 0 else 128 - code


def _begin(quota: Quota | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDED_ON)
    if quota is not None:
        quota.enter()


def main() -> int:
    if len(sys.argv) < 2:
        print("throttle.py: name the command that is to run slowly", file=sys.stderr)
        return 2
    quota = make_quota()
    if quota is None:
        take_one_core()
        return run(sys.argv[1:], None)
    try:
        return run(sys.argv[1:], quota)
    finally:
        quota.remove()


if __name__ == "__main__":
    sys.exit(main())
