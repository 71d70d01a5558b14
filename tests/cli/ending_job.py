"""A job of `deadpool run` that a test brings to a phase, ends a process of, and looks around after."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from command import COMMAND, alive
from waiting import LIMIT_S, wait_until

from deadpool.cli.job_client import ask
from deadpool.control.launch.run_dir import RunDir
from deadpool.events.event import read_events
from deadpool.host.private_files import ProcessLock
from deadpool_lab.workload.run import pause

SCRIPT = Path(__file__).with_name("endings_script.py")
GATES = Path(__file__).parents[1] / "e2e"
PHASES = ("launching", "loading", "training", "recovering", "ending")
SETTINGS = ("--overhead-budget=0", f"--hang-timeout-s={LIMIT_S:g}")  # a job that stands at a gate does not hang


@dataclass(slots=True)
class EndingJob:
    folder: Path
    phase: str
    target: str = "launcher"  # the process that is to be ended: the others are no more than it needs
    launcher: psutil.Process = field(init=False)
    _ports: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        for name in ("gates", "out"):
            (self.folder / name).mkdir()

    # --- how it begins -----------------------------------------------------------------------------------------------

    @property
    def words(self) -> list[str]:
        standbys, spares = int(self.target == "standby"), int(self.target == "agent")
        shape = [f"--nodes={self._nodes}", f"--spares={spares}", f"--standby-coordinators={standbys}"]
        return [*COMMAND, "run", f"--run-dir={self.run_dir.path}", *shape, *SETTINGS, str(SCRIPT), str(self.out)]

    @property
    def _nodes(self) -> int:
        return {"standby": 3, "agent": 2}.get(self.target, 1)

    @property
    def environment(self) -> dict[str, str]:
        gates = {"recovering": "training recovering"}.get(self.phase, self.phase)
        path = os.pathsep.join([str(GATES), os.environ.get("PYTHONPATH", "")])
        return {**os.environ, "ENDINGS_GATES": gates, "E2E_GATES": str(self.folder / "gates"), "PYTHONPATH": path}

    @contextlib.contextmanager
    def started(self, *before: str, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
        """In a process group of its own, as a shell starts it. `before`: words before the command, such as nohup."""
        how = {"stdin": subprocess.DEVNULL, "process_group": 0, "env": self.environment, **how}
        with (self.folder / "console").open("wb") as file:
            process = subprocess.Popen([*before, *self.words], stdout=file, stderr=subprocess.STDOUT, **how)
        self.launcher = psutil.Process(process.pid)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def reach(self) -> None:
        """Until the job is in its phase, and cannot leave it."""
        wait_until(lambda: self.run_dir.is_known, self._unreached)
        if self.phase == "recovering":
            self._await_gate("training")
            wait_until(self._is_committed, self._unreached)
            self._at_gate("training").kill()
            self._open("training")
        if self.phase != "launching":
            self._await_gate(self.phase)
        if self.phase == "training":
            wait_until(self._is_committed, self._unreached)
        self._ports = {port for process in self._family() for port in _listens_on(process)}

    def go_on(self) -> None:
        for gate in PHASES:
            self._open(gate)

    # --- its processes -----------------------------------------------------------------------------------------------

    def find(self, what: str) -> psutil.Process:
        match what:
            case "launcher":
                return self.launcher
            case "coordinator":
                return psutil.Process(self.run_dir.coordinator_pid())
            case "standby":
                return self._standby()
            case "agent":
                return self._agent()
            case "fork-server":
                return self._children("deadpool.trainer.process.fork_server")[0]
            case "node's-fork-server":
                return psutil.Process(self._at_gate(self.phase).ppid())
        assert what == "trainer", what
        return self._at_gate(self.phase)

    def ends_with(self, what: str) -> list[psutil.Process]:
        """Who has to be gone before the job may go on: a trainer that lives a moment longer could end its loop."""
        if what in ("launcher", "all"):
            return []
        with_trainer = what in ("agent", "node's-fork-server") and self.phase != "launching"
        return [self.find(what), *([self.find("trainer")] if with_trainer else [])]

    def _standby(self) -> psutil.Process:
        leader = self.run_dir.coordinator_pid()
        return wait_until(
            lambda: next((each for each in self._children("coordinator") if each.pid != leader), None), "a standby"
        )

    def _agent(self) -> psutil.Process:
        """Of the rank that stands at the gate; while the job is launched, the first one."""
        if self.phase != "launching":
            return psutil.Process(os.getpgid(self._at_gate(self.phase).pid))
        return wait_until(lambda: next(iter(self._children("agent")), None), "an agent")

    def _at_gate(self, gate: str) -> psutil.Process:
        return psutil.Process(int((self.folder / "gates" / f"reached-{gate}").read_text()))

    def _children(self, word: str) -> list[psutil.Process]:
        found = []
        for process in self.launcher.children():
            with contextlib.suppress(psutil.Error):
                if word in process.cmdline():
                    found.append(process)
        return found

    def _family(self) -> list[psutil.Process]:
        return [self.launcher, *self.launcher.children(recursive=True)]

    # --- what can be seen of it --------------------------------------------------------------------------------------

    @property
    def run_dir(self) -> RunDir:
        return RunDir(self.folder / "run")

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def console(self) -> str:
        return (self.folder / "console").read_text(errors="replace")

    def has_done_all_steps(self) -> bool:
        return [path.read_text() for path in self.out.glob("steps-of-*")] == ["6"] * self._nodes

    def events(self, what: str) -> list[dict[str, object]]:
        return [event for event in read_events(self.run_dir.events) if event["what"] == what]

    def left(self) -> list[str]:
        """What the job has left behind. Files of its folder are not among it: people read them."""
        found = [f"process {name}" for name in alive()]
        found += [f"port {port}" for port in self._ports & _listened_to()]
        lock = ProcessLock(self.run_dir.path / "lock", "a test")
        if (owner := lock.find_owner()) is not None:
            found.append(f"the lock of {owner}")
        os.close(lock.descriptor)  # closing the lease would take away what the file says
        return found

    def _is_committed(self) -> bool:
        watermark = ask(self.run_dir, "status")["watermark"]
        return watermark is not None and watermark > 0

    def _await_gate(self, name: str) -> None:
        wait_until((self.folder / "gates" / f"reached-{name}").exists, self._unreached)

    def _open(self, gate: str) -> None:
        pause(f"opening gate {gate}")
        (self.folder / "gates" / f"open-{gate}").touch()

    def _unreached(self) -> str:
        return f"the phase {self.phase} of a job that printed:\n{self.console()}\n"


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _listens_on(process: psutil.Process) -> list[int]:
    with contextlib.suppress(psutil.Error):
        return [each.laddr.port for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
    return []


def _listened_to() -> set[int]:
    return {each.laddr.port for each in psutil.net_connections("inet") if each.status == psutil.CONN_LISTEN}
