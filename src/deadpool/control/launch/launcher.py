"""A whole job on this machine, from its start to its end.

`Forming`: whether a job on this machine can still begin: a coordinator waits without a limit for the nodes to begin
with.

On a cluster they may come late. Here the launcher has started all of them, and nobody brings another one.

`Site` and `LocalJob`: a whole job on this machine: a coordinator and one agent per node, each node a process group
of its own.

Whatever happens to the launching process, no process that it started survives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol, cast

from deadpool.config.environment import SECRET_FILE_VARIABLE, SECRET_VARIABLE, TLS_VARIABLE
from deadpool.config.job_config import JobConfig, settings_for
from deadpool.config.values import AGENT
from deadpool.control.console import print_line
from deadpool.control.coordinator.announcement import ask_status
from deadpool.control.launch.command_forks import CommandForks
from deadpool.control.launch.coordinator_processes import CoordinatorProcesses
from deadpool.control.launch.run_dir import RunDir
from deadpool.control.trainers.fork_client import SharedForkServer, socket_pair
from deadpool.control.trainers.process_activity import OomWatch
from deadpool.errors import ConfigError
from deadpool.events.event import read_events
from deadpool.host.child_processes import end_with_parent, interrupts_held
from deadpool.host.private_files import open_private
from deadpool.protocol.coordinator.job import Phase
from deadpool.wire.credentials import settled
from deadpool.wire.deadline import collective_variables

_UNWRITTEN_S = 10.0
"""An event may be on its way to a slow disk for so long."""
_ASK_S, _ANSWER_S = 1.0, 5.0


class Forming:
    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir, self._started_at = run_dir, time.time()
        self._ask_at: float | None = None  # when the coordinator is asked next
        self._is_over = False  # as far as it was asked for

    def is_hopeless(self, gone: Sequence[str]) -> bool:
        """`gone`: nodes that the job was to begin with, and whose agents have ended."""
        if self._is_over or not gone:
            return False
        if self._ask_at is None:
            self._ask_at = time.monotonic() + _UNWRITTEN_S
        self._is_over = any(event["what"] == "planned" for event in self._events())
        if self._is_over or time.monotonic() <= self._ask_at:
            return False
        phase = self._phase()
        self._ask_at, self._is_over = time.monotonic() + _ASK_S, phase not in (None, Phase.FORMING.value)
        return phase == Phase.FORMING.value

    def _phase(self) -> str | None:
        """Asks the coordinator for the phase: a disk that has been full since the job began has no events of it."""
        with contextlib.suppress(ConfigError, OSError):
            return str(asyncio.run(asyncio.wait_for(ask_status(self._run_dir), _ANSWER_S))["phase"])
        return None

    def _events(self) -> list[dict[str, Any]]:
        """Returns the events of this job: one before it may have used the folder. A disk that is gone for a while has
        none.
        """
        with contextlib.suppress(OSError):
            return [event for event in read_events(self._run_dir.events) if event.get("t", 0.0) >= self._started_at]
        return []


_GRACE_S = 2.0
_TEND_S = 0.05


def new_run_name() -> str:
    return time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)


def new_run_dir(parent: Path | None = None) -> RunDir:
    return RunDir.create((parent or Path("deadpool-runs")) / new_run_name())


class Site(Protocol):
    """Where the nodes of a job run, if not all at one address."""

    def host(self, node: str) -> str:
        """The address that other nodes reach it at."""

    def enter(self, node: str) -> None:
        """Called in the node's process before anything else, to move it there."""


@dataclass(slots=True)
class LocalJob:
    """A job's processes as seen from the launcher."""

    config: JobConfig
    run_dir: RunDir
    script: list[str]
    quiet: bool = False  # the output of all processes goes to the run folder, not to the terminal
    output: int | None = None  # with `quiet`: a descriptor that it goes to instead; the caller closes it
    environment: dict[str, str] = field(default_factory=dict)
    fork_server: SharedForkServer | None = None  # if it is given, the caller closes it
    site: Site | None = None
    preload: tuple[str, ...] = ()  # packages that the fork server imports beside torch
    _own_fork_server: SharedForkServer | None = None
    coordinators: CoordinatorProcesses | None = None
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _forming: Forming | None = None
    _reported: set[str] = field(default_factory=set)  # nodes whose death was printed
    _oom: OomWatch = field(default_factory=OomWatch)

    def start(self) -> None:
        if self.fork_server is None:
            self.fork_server = self._own_fork_server = SharedForkServer(self.preload)
        self.coordinators = CoordinatorProcesses(self.config, self.run_dir, self._spawn)
        self._forming = Forming(self.run_dir)
        self.coordinators.start()
        racks = self.config.racks()
        for index, name in enumerate(self.config.node_names):
            self.add_node(name, spare=index >= self.config.nodes, rack=racks.get(name))

    def add_node(self, name: str, *, spare: bool, rack: str | None = None) -> None:
        assert self.fork_server is not None
        ours, theirs = socket_pair()
        with ours, theirs:
            command = self._agent_command(name, spare, rack, fork_server=ours.fileno())
            enter = functools.partial(self.site.enter, name) if self.site is not None else None
            node = self._spawn(command, signal.SIGKILL, pass_fds=(ours.fileno(),), enter=enter)
            self.nodes[name] = node
            self.fork_server.fork_node_server(theirs, node.pid, self._variables())

    def wait(self, timeout_s: float | None = None) -> int:
        """Returns the exit code of the last coordinator, which is the job's. Raises TimeoutExpired as a process
        would."""
        deadline = time.monotonic() + timeout_s if timeout_s is not None else None
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("the job", timeout_s or 0.0)
            time.sleep(_TEND_S)
        return code

    def poll(self) -> int | None:
        """Restarts dead coordinators. Returns the job's exit code once the job has ended."""
        assert self.coordinators is not None
        self._report_deaths()
        code = self.coordinators.poll(deserted=self._is_deserted)
        return 1 if code is None and self._never_begins() else code

    def _never_begins(self) -> bool:
        names = self.config.node_names[: self.config.nodes]
        gone = [name for name in names if name in self.nodes and self.nodes[name].poll() is not None]
        if self._forming is None or not self._forming.is_hopeless(gone):
            return False
        if not self.quiet:
            print_line(f"[deadpool] FAILED: the agent of node {gone[0]} ended before the job had begun")
        return True

    @property
    def _is_deserted(self) -> bool:
        return all(process.poll() is not None for process in self.nodes.values())

    def _report_deaths(self) -> None:
        """The coordinator sees only that a connection ended; how the agent ended is known here."""
        for name, process in self.nodes.items():
            code = process.poll()
            if code is not None and code < 0 and name not in self._reported:
                self._reported.add(name)
                if not self.quiet:
                    print_line(f"[deadpool] the agent of node {name} was {self._oom.explain(code)}")

    @property
    def coordinator(self) -> subprocess.Popen[bytes] | None:
        """The process that is the coordinator, or was last."""
        return self.coordinators.leading() if self.coordinators is not None else None

    def kill_node(self, name: str) -> float:
        """Sends SIGKILL to the whole node, agent and trainers together. Returns the time of that."""
        at = time.time()
        os.killpg(self.nodes[name].pid, signal.SIGKILL)
        return at

    def stop(self) -> None:
        """Asks first; what does not go is killed. Safe to call at any time and more than once."""
        if self.coordinators is not None:
            self.coordinators.stop()
        for process in self.nodes.values():
            process.terminate()  # an agent that never reached the coordinator does not know that the job is over
        deadline = time.monotonic() + _GRACE_S  # for all nodes together
        for process in self.nodes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            _kill_group(process)
            process.wait()
        if self._own_fork_server is not None:
            self._own_fork_server.close()
            self._own_fork_server = None

    def kill(self) -> None:
        """Ends everything at once, and waits for nothing: for whoever asks again while `stop` waits."""
        if self.coordinators is not None:
            self.coordinators.kill()
        for process in self.nodes.values():
            _kill_group(process)

    def _agent_command(self, name: str, spare: bool, rack: str | None, *, fork_server: int) -> list[str]:
        assert self.coordinators is not None
        host = self.site.host(name) if self.site is not None else self.config.host
        metrics_port = self.config.metrics_port_of(1 + self.config.standby_coordinators + len(self.nodes))
        own = {"host": host, "interface": "", "tls": settled(self.config.tls), "metrics_port": metrics_port}
        values = {**dataclasses.asdict(self.config), **own}
        words = [word for each in settings_for(AGENT) for word in each.words(values[each.name])]
        words += [f"--join={','.join(self.coordinators.places)}", f"--name={name}", f"--logs={self.run_dir.logs}"]
        words += [f"--rack={rack}"] if rack is not None else []
        words += [f"--preload={package}" for package in self.preload]
        words += ["--spare"] if spare else []
        return ["agent", *words, f"--fork-server={fork_server}", "--", *self.script]

    def _variables(self) -> dict[str, str]:
        variables = {**os.environ, **self.environment, SECRET_FILE_VARIABLE: str(self.run_dir.secret_file)}
        variables.pop(SECRET_VARIABLE, None)  # it would be the secret of another job
        variables = {**collective_variables(self.config.interface), **variables, TLS_VARIABLE: settled(self.config.tls)}
        variables.setdefault("OMP_NUM_THREADS", "1")  # of each trainer: many trainers share the cores of a machine
        return variables

    def _spawn(
        self,
        command: list[str],
        end_signal: signal.Signals,
        *,
        pass_fds: tuple[int, ...] = (),
        enter: Callable[[], None] | None = None,
    ) -> subprocess.Popen[bytes]:
        commands = self.fork_server.commands if self.fork_server is not None else None
        if commands is not None and self.quiet and enter is None:
            return self._fork(commands, command, end_signal, pass_fds)
        tie_to_parent = end_with_parent(end_signal)

        def begin() -> None:
            tie_to_parent()
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # `stty tostop` would stop it at its first line
            if enter is not None:
                enter()

        console = self._console() if self.quiet else contextlib.nullcontext()
        with console as output, interrupts_held():
            return subprocess.Popen(
                [sys.executable, "-m", "deadpool.cli.main", *command],
                env=self._variables(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                pass_fds=pass_fds,
                preexec_fn=begin,
            )

    def _fork(
        self, commands: CommandForks, command: list[str], end_signal: signal.Signals, descriptors: tuple[int, ...]
    ) -> subprocess.Popen[bytes]:
        with self._console() as output:
            forked = commands.spawn(command, self._variables(), end_signal, output, descriptors)
        return cast("subprocess.Popen[bytes]", forked)

    @contextlib.contextmanager
    def _console(self) -> Iterator[int]:
        """What the processes of a quiet job print to."""
        if self.output is not None:
            yield self.output
            return
        with self._console_file() as file:
            yield file.fileno()

    def _console_file(self) -> IO[bytes]:
        """A coordinator is started again also while nothing can be written there; what it prints is then lost."""
        try:
            return open_private(self.run_dir.path / "console.log", "ab")
        except OSError:
            return open(os.devnull, "wb")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def running(job: LocalJob) -> Iterator[LocalJob]:
    """Starts the job, and stops it in any case. An interrupt of that kills what is left."""
    try:
        job.start()
        yield job
    finally:
        try:
            job.stop()
        except BaseException:
            job.kill()
            raise
