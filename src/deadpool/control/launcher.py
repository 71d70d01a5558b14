"""A whole job on this machine: a coordinator and one agent per node, each node a process group of its own.

`launch` returns when the job has ended; whatever happens to this process, nothing it started survives it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from deadpool.config import JobConfig
from deadpool.control.nursery import SharedNursery, socket_pair
from deadpool.control.run_dir import RunDir
from deadpool.errors import ConfigError
from deadpool.owner_only import open_private
from deadpool.parent import end_with_parent, interrupts_held
from deadpool.wire.interfaces import collective_variables
from deadpool.wire.secret import SECRET_FILE_VARIABLE, SECRET_VARIABLE
from deadpool.wire.tls import TLS_VARIABLE, settled

_START_S = 30.0
_STOP_S = 10.0
_GRACE_S = 2.0


def new_run_dir(parent: Path | None = None) -> RunDir:
    name = time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)
    return RunDir.create((parent or Path("deadpool-runs")) / name)


@dataclass(slots=True)
class LocalJob:
    """A job's processes as seen from the launcher."""

    config: JobConfig
    run_dir: RunDir
    script: list[str]
    quiet: bool = False  # what processes say goes into the run folder, not to the terminal
    environment: dict[str, str] = field(default_factory=dict)
    nursery: SharedNursery | None = None  # given: somebody else's, who also closes it
    _own_nursery: SharedNursery | None = None
    coordinator: subprocess.Popen[bytes] | None = None
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self) -> None:
        self.run_dir.make_secret()
        if self.nursery is None:
            self.nursery = self._own_nursery = SharedNursery()
        self.coordinator = self._spawn(self._coordinator_command(), signal.SIGTERM)
        self._await_coordinator()
        racks = self.config.racks()
        for index, name in enumerate(self.config.node_names):
            self.add_node(name, spare=index >= self.config.nodes, rack=racks.get(name))

    def add_node(self, name: str, *, spare: bool, rack: str | None = None) -> None:
        assert self.nursery is not None
        ours, theirs = socket_pair()
        with ours, theirs:
            command = self._agent_command(name, spare, rack, nursery=ours.fileno())
            node = self._spawn(command, signal.SIGKILL, pass_fds=(ours.fileno(),))
            self.nodes[name] = node
            self.nursery.bear(theirs, node.pid, self._variables())

    def wait(self, timeout_s: float | None = None) -> int:
        """The coordinator's exit code is the job's."""
        assert self.coordinator is not None
        return self.coordinator.wait(timeout_s)

    def kill_node(self, name: str) -> float:
        """SIGKILL to the whole node, agent and trainers together. Returns when."""
        at = time.time()
        os.killpg(self.nodes[name].pid, signal.SIGKILL)
        return at

    def stop(self) -> None:
        """Asks first; what does not go is killed. Safe to call at any time and more than once."""
        if self.coordinator is not None:
            _end(self.coordinator, signal.SIGTERM, _STOP_S)
        for process in self.nodes.values():
            process.terminate()  # who never reached the coordinator does not know; the others are leaving
        deadline = time.monotonic() + _GRACE_S  # for all together
        for process in self.nodes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if self._own_nursery is not None:
            self._own_nursery.close()
            self._own_nursery = None

    def _await_coordinator(self) -> None:
        assert self.coordinator is not None
        deadline = time.monotonic() + _START_S
        while not (self.run_dir.path / "job.json").exists():
            if self.coordinator.poll() is not None or time.monotonic() > deadline:
                raise ConfigError(f"the coordinator did not start; its log is in {self.run_dir.path}")
            time.sleep(0.01)

    def _coordinator_command(self) -> list[str]:
        config = self.config
        flags = {
            "nodes": config.nodes,
            "nproc-per-node": config.nproc_per_node,
            "holders": config.holders,
            "slots": config.slots,
            "capture-every": config.capture_every,
            "overhead-budget": config.overhead_budget,
            "node-timeout-s": config.node_timeout_s,
            "unwind-timeout-s": config.unwind_timeout_s,
            "prepare-timeout-s": config.prepare_timeout_s,
            "connect-timeout-s": config.connect_timeout_s,
            "spare-wait-s": config.spare_wait_s,
            "hang-timeout-s": config.hang_timeout_s,
            "in-place": config.in_place,
            "host": config.host,
            "port": config.port,
            "tls": config.tls,
            "run-dir": self.run_dir.path,
        }
        faults = [f"--fault={text}" for text in config.faults]
        return ["coordinator", *(f"--{name}={value}" for name, value in flags.items()), *faults]

    def _agent_command(self, name: str, spare: bool, rack: str | None, *, nursery: int) -> list[str]:
        address = self.run_dir.coordinator()
        command = ["agent", f"--join={address}", f"--name={name}", f"--standby={self.config.standby}"]
        command += [f"--understudies={self.config.understudies}"] if spare else []
        command += [f"--rack={rack}"] if rack is not None else []
        command += [f"--bulk-nice={self.config.bulk_nice}", f"--bulk-cpus={self.config.bulk_cpus}"]
        command += [f"--host={self.config.host}", f"--logs={self.run_dir.logs}", f"--nursery={nursery}"]
        return command + (["--spare"] if spare else []) + ["--", *self.script]

    def _variables(self) -> dict[str, str]:
        variables = {**os.environ, **self.environment, SECRET_FILE_VARIABLE: str(self.run_dir.secret_file)}
        variables.pop(SECRET_VARIABLE, None)  # that of another job
        variables = {**collective_variables(self.config.interface), **variables, TLS_VARIABLE: settled(self.config.tls)}
        variables.setdefault("OMP_NUM_THREADS", "1")  # of each trainer: a machine's cores are shared by many
        return variables

    def _spawn(
        self, command: list[str], end_signal: signal.Signals, *, pass_fds: tuple[int, ...] = ()
    ) -> subprocess.Popen[bytes]:
        console = open_private(self.run_dir.path / "console.log", "ab") if self.quiet else contextlib.nullcontext()
        with console as output, interrupts_held():
            return subprocess.Popen(
                [sys.executable, "-m", "deadpool.cli.main", *command],
                env=self._variables(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                pass_fds=pass_fds,
                preexec_fn=end_with_parent(end_signal),
            )


def _end(process: subprocess.Popen[bytes], sig: signal.Signals, patience_s: float) -> None:
    if process.poll() is None:
        process.send_signal(sig)
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def running(job: LocalJob) -> Iterator[LocalJob]:
    """Started, and in any case stopped."""
    try:
        job.start()
        yield job
    finally:
        job.stop()
