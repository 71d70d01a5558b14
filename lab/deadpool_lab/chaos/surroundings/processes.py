"""The processes of a job under faults, the terminal that they print to, and their end.

`JobProcesses` sends signals to them, and starts new nodes in place of dead ones. The terminal is closed in the middle,
as that of a job under `setsid` is: whatever they write afterwards fails with EIO, processes that start later print to
another terminal, and what was printed is kept in a file.

`guarded` and `left_behind` end every process of a run when the run ends, also those that are stopped and would not see
a closed pipe. Every process that a run starts carries a mark in its environment, which its children get too.
`left_behind` finds such processes, and a small process that waits for the end of the run kills those that are left.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deadpool.config.environment import PREFIX
from deadpool.control.launch.launcher import LocalJob
from deadpool_lab.chaos.surroundings.health_files import HealthFiles
from deadpool_lab.chaos.surroundings.network import Network

_REPLACED_AFTER_S = (0.2, 3.0)
_STOP_S = 1.0

_CHUNK = 1 << 16


class JobProcesses:
    def __init__(self, job: LocalJob, network: Network, rng: random.Random, health: HealthFiles | None = None) -> None:
        self._job, self._network, self._rng, self._health = job, network, rng, health
        self._names = len(job.config.node_names)
        self.size = self._names  # how many nodes there should be
        self._dead: set[str] = set()
        self._due: list[float] = []  # times at which a new node replaces a dead one
        self._stopped: set[int] = set()

    def prepare(self) -> None:
        for name in self._job.config.node_names:
            self._begin(name)

    def _begin(self, name: str) -> None:
        self._network.add(name)
        if self._health is not None:
            self._health.make_well(name)

    # --- nodes -------------------------------------------------------------------------------------------------------

    def agent(self, node: str) -> int:
        return self._job.nodes[node].pid

    @property
    def coordinator(self) -> int:
        process = self._job.coordinator
        assert process is not None
        return process.pid

    def alive(self) -> list[str]:
        return [name for name, process in self._job.nodes.items() if process.poll() is None]

    def is_alive(self, node: str) -> bool:
        return self._job.nodes[node].poll() is None

    def is_part_of(self, node: str, pid: int) -> bool:
        """A status may be old, and its process id may belong to another process by now."""
        try:
            return node in self._job.nodes and os.getpgid(pid) == self.agent(node)
        except ProcessLookupError:
            return False

    def add(self) -> str:
        """Adds a node to the running job, under a new name."""
        name = f"n{self._names}"
        self._names += 1
        self._begin(name)
        self._job.add_node(name, spare=True)
        return name

    def print_to(self, descriptor: int) -> None:
        """Where processes print to that are started from now on."""
        self._job.output = descriptor

    def replace_dead(self) -> None:
        """Replaces each node that has ended by another one, some time later, unless there are enough."""
        now = time.monotonic()
        for name in self._job.nodes:
            if name not in self._dead and not self.is_alive(name):
                self._dead.add(name)
                self._due.append(now + self._rng.uniform(*_REPLACED_AFTER_S))
        for due in [due for due in self._due if due <= now]:
            self._due.remove(due)
            if len(self.alive()) < self.size:
                self.add()

    # --- signals -----------------------------------------------------------------------------------------------------

    def signal(self, pid: int, sig: signal.Signals) -> None:
        _send(pid, sig)

    def kill_node(self, node: str) -> None:
        _send(-self.agent(node), signal.SIGKILL)

    def stop_node(self, node: str) -> None:
        """When this returns, no thread of the node runs any more."""
        self._stopped.add(-self.agent(node))
        _send(-self.agent(node), signal.SIGSTOP)
        deadline = time.monotonic() + _STOP_S
        while time.monotonic() < deadline and not all(map(_is_stopped, self.pids().get(node, []))):
            time.sleep(0.005)

    def resume_node(self, node: str) -> None:
        self.resume(-self.agent(node))

    def stop(self, pid: int) -> None:
        self._stopped.add(pid)
        _send(pid, signal.SIGSTOP)

    def resume(self, pid: int) -> None:
        self._stopped.discard(pid)
        _send(pid, signal.SIGCONT)

    def resume_all(self) -> None:
        """A stopped process could not be told to end."""
        for pid in list(self._stopped):
            self.resume(pid)

    def pids(self) -> dict[str, list[int]]:
        """All processes of nodes that are alive, agents first."""
        groups: dict[int, list[int]] = {}
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                with contextlib.suppress(OSError):
                    groups.setdefault(os.getpgid(int(path.name)), []).append(int(path.name))
        return {name: sorted(groups.get(self.agent(name), [])) for name in self.alive()}


def _is_stopped(pid: int) -> bool:
    """Whether no thread of the process runs, also because it has ended."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[0] not in "TtZX":
                return False
    return True


def _send(target: int, sig: signal.Signals) -> None:
    """`target` is a process, or a group if it is negative. It may have ended meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(target, sig)


MARK_VARIABLE = PREFIX + "CHAOS_MARK"
_PATIENCE_S = 5.0

_WAIT_AND_END = """
import os, signal, sys, time
def marked():
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if sys.argv[1].encode() in file.read() and int(name) != os.getpid():
                    yield int(name)
        except OSError:
            pass
sys.stdin.buffer.read()  # ends when the owner closes the pipe or dies
for _ in range(20):
    for pid in marked():
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    time.sleep(0.1)
"""


@contextlib.contextmanager
def guarded() -> Iterator[str]:
    """Processes that are started inside carry the mark that this yields."""
    mark = f"{MARK_VARIABLE}={secrets.token_hex(8)}"
    reaper = subprocess.Popen(
        [sys.executable, "-I", "-c", _WAIT_AND_END, mark], stdin=subprocess.PIPE, start_new_session=True
    )
    os.environ[MARK_VARIABLE] = mark.partition("=")[2]
    try:
        yield mark
    finally:
        del os.environ[MARK_VARIABLE]
        reaper.kill()
        reaper.communicate()


def left_behind(mark: str) -> list[str]:
    """Processes that should have ended by themselves. They are ended now."""
    deadline = time.monotonic() + _PATIENCE_S
    while (found := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return sorted(found.values())


def _marked(mark: str) -> dict[int, str]:
    found = {}
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/environ", "rb") as file:
                is_ours = mark.encode() in file.read()
            if is_ours and pid != os.getpid():
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    found[pid] = file.read().replace(b"\0", b" ").decode(errors="replace")[:100]
    return found


class Terminal:
    def __init__(self, said: Path) -> None:
        """`said` is the file for what is printed. It must not lie on a disk that may be held up: who prints would wait
        for this terminal."""
        self.said = said
        self.number = 0  # counts the terminals that were opened
        self.descriptor = -1  # for whoever is to print here
        self._master = self._closing = -1
        self._reader: threading.Thread | None = None

    def open(self) -> None:
        self.number += 1
        self._master, self.descriptor = os.openpty()
        tty.setraw(self.descriptor)  # lines as they were written
        woken, self._closing = os.pipe()
        self._reader = threading.Thread(
            target=self._read, args=(self._master, woken), name="deadpool-chaos-terminal", daemon=True
        )
        self._reader.start()

    def close(self) -> None:
        """When this returns, everything that was printed before is in the file."""
        os.close(self.descriptor)
        os.close(self._closing)
        assert self._reader is not None
        self._reader.join()

    def replace(self) -> None:
        """Closes it, and opens another one for processes that start from now on."""
        self.close()
        self.open()

    def _read(self, master: int, woken: int) -> None:
        """Reads until it is told to close. What was printed by then is read all the same."""
        with self.said.open("ab", buffering=0) as file:
            is_closing = False
            while not is_closing:
                ready, _, _ = select.select([master, woken], [], [])
                is_closing = woken in ready
                self._drain(master, file.write)
        os.close(master)
        os.close(woken)

    def _drain(self, master: int, write: Any) -> None:
        with contextlib.suppress(OSError):  # EIO: nobody has it open any more
            while select.select([master], [], [], 0.0)[0] and (data := os.read(master, _CHUNK)):
                write(data)

    def records(self) -> Iterator[dict[str, Any]]:
        """What was printed as JSON. A line may be cut short where it was closed."""
        for line in self.said.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict):
                    yield record
