"""Runs the command of --while-parked and ends it with everything that it started: the process between it and the agent.

    python -m deadpool.control.trainers.parked_keeper GRACE_S LOG COMMAND

Every descendant whose own parent has ended becomes a child of this process (PR_SET_CHILD_SUBREAPER), also one in
another session or process group. On SIGTERM, and when its parent dies, it sends SIGTERM to all of them, and after
GRACE_S seconds SIGKILL until none is left. The command counts as running until the last of them has ended. The last
line of the output is the command's exit code and the number of processes that had to be killed.

What is not caught: processes that another service starts for the command (a container engine, systemd-run, another
machine), and processes of another user.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from deadpool.host.child_processes import adopt_orphans, end_with_parent
from deadpool.host.private_files import owner_only_opener

NICENESS = 19
_CHECK_S = 0.02
_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}
_ENDED = "ZX"


class Keeper:
    def __init__(self, command: str, log: Path, *, grace_s: float) -> None:
        self._command, self._log, self._grace_s = command, log, grace_s
        self._main = 0
        self._main_is_reaped = False
        self.code = 0
        self.killed: set[int] = set()

    def run(self) -> None:
        self._main = self._start()
        while self._reap():
            if signal.sigwait(_SIGNALS) == signal.SIGTERM:
                self._end()
                return

    def _start(self) -> int:
        tie = end_with_parent(signal.SIGKILL)

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            os.nice(NICENESS)
            tie()

        log = owner_only_opener(str(self._log), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=prepare,
            )
        finally:
            os.close(log)
        process.returncode = 0  # it is reaped here, with all others
        return process.pid

    def _reap(self) -> bool:
        """Returns whether any child is left."""
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._main:
                    self.code, self._main_is_reaped = os.waitstatus_to_exitcode(ended[1]), True
        except ChildProcessError:
            return False
        return True

    def _end(self) -> None:
        """Nobody gets the signal twice, which may mean something else. The group gets it as a whole, so that nobody is
        left out that the command begins at this moment."""
        found = descendants(os.getpid())
        others = [pid for pid in found if self._main_is_reaped or _group_of(pid) != self._main]
        self._send_to_group(signal.SIGTERM, signal.SIGCONT)  # a process that is stopped takes no other signal
        for pid in others:
            _send(pid, signal.SIGTERM)
            _send(pid, signal.SIGCONT)
        patient_until = time.monotonic() + self._grace_s
        while self._reap():
            if time.monotonic() >= patient_until:
                self._kill()
            signal.sigtimedwait({signal.SIGCHLD}, _CHECK_S)

    def _kill(self) -> None:
        self._send_to_group(signal.SIGKILL)
        for pid in descendants(os.getpid()):
            if _send(pid, signal.SIGKILL):
                self.killed.add(pid)

    def _send_to_group(self, *signals: signal.Signals) -> None:
        """Needs no /proc. Only before the command itself is reaped: from then on its number may be another's."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            for sig in () if self._main_is_reaped else signals:
                os.killpg(self._main, sig)


def _send(pid: int, sig: signal.Signals) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, sig)
        return True
    return False


def _group_of(pid: int) -> int:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid)
    return 0  # it has ended


def running_descendants(pid: int) -> list[int]:
    """Returns the descendants that do not merely wait to be reaped."""
    return [found for found in descendants(pid) if (seen := _look_at(found)) is not None and seen[0] not in _ENDED]


def descendants(pid: int) -> list[int]:
    """All that live or wait to be reaped, children before their own children."""
    children = _children if _kernel_lists_children() else _children_by_parent().get
    found = [pid]
    for parent in found:
        found.extend(children(parent) or ())
    return found[1:]


def _kernel_lists_children() -> bool:
    """Tells whether the kernel was built with CONFIG_PROC_CHILDREN."""
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists()


def _children(pid: int) -> list[int]:
    """A thread may be the parent."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            found.extend(map(int, (thread / "children").read_text().split()))
    return found


def _children_by_parent() -> dict[int, list[int]]:
    """Returns the children of all processes of the machine, by parent."""
    found: dict[int, list[int]] = {}
    for pid in [int(path.name) for path in Path("/proc").glob("[0-9]*")]:
        if (seen := _look_at(pid)) is not None:
            found.setdefault(seen[1], []).append(pid)
    return found


def _look_at(pid: int) -> tuple[str, int] | None:
    """A process's state and parent. Its name comes first and may hold anything, even parentheses."""
    try:
        state, parent, *_ = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return state, int(parent)


def main() -> None:
    grace_s, log, command = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    adopt_orphans()
    keeper = Keeper(command, Path(log), grace_s=float(grace_s))
    keeper.run()
    print(keeper.code, len(keeper.killed), flush=True)


if __name__ == "__main__":
    main()
