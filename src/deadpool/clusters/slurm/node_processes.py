"""The agent of a node and, on some nodes, a coordinator: how they are started, started again and ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from deadpool.clusters.slurm.batch_script import command
from deadpool.clusters.slurm.run_folder import RunFolder
from deadpool.config.environment import NOTICE_VARIABLE, SECRET_FILE_VARIABLE, SECRET_VARIABLE
from deadpool.host.child_processes import end_with_parent, interrupts_held
from deadpool.host.owner_only import open_private
from deadpool.wire.secret import handed_over

Process = subprocess.Popen[bytes]
_STOP_S = 10.0
_RESTARTS = 20


@dataclass(slots=True)
class NodeProcesses:
    folder: RunFolder
    node: str
    agent: Process | None = None
    coordinator: Process | None = None
    _restarts: int = 0
    _secret: bytes = b""

    def start_agent(self, words: Sequence[str]) -> None:
        self.agent = self._start(words, "agent", signal.SIGKILL)

    def start_coordinator(self, words: Sequence[str]) -> None:
        self._secret = self.folder.run_dir.secret_file.read_bytes()
        self.coordinator = self._start(words, "coordinator", signal.SIGTERM)

    def restart_coordinator(self, words: Sequence[str]) -> None:
        """Starts the coordinator again after a signal has ended it: the nodes turn to it again, or to another one."""
        if self._restarts < _RESTARTS:
            self._restarts += 1
            with handed_over(self._secret) as secret:  # its folder may be gone for a while
                words = [*words, "--again", f"--secret-from={secret}"]
                self.coordinator = self._start(words, "coordinator", signal.SIGTERM, secret)

    @property
    def has_coordinator(self) -> bool:
        """One that runs."""
        return self.coordinator is not None and self.coordinator.poll() is None

    def cancel(self) -> None:
        """All of them end at once: Slurm takes the whole job away."""
        if self.agent is not None:
            self.agent.send_signal(signal.SIGINT)
        if self.coordinator is not None:
            self.coordinator.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        for process in (self.coordinator, self.agent):
            if process is not None and process.poll() is None:
                process.terminate()
                try:
                    process.wait(_STOP_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def _start(self, words: Sequence[str], name: str, at_parents_end: signal.Signals, *descriptors: int) -> Process:
        """Starts a process whose output goes to a file: the way to srun's output ends with the batch host."""
        own = {
            SECRET_FILE_VARIABLE: str(self.folder.run_dir.secret_file),
            NOTICE_VARIABLE: str(self.folder.notice_file),
        }
        variables = {**os.environ, **own}
        variables.pop(SECRET_VARIABLE, None)  # it would be the secret of another job
        with self._output(name) as output, interrupts_held():
            return subprocess.Popen(
                [*command(), *words],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                pass_fds=descriptors,
                preexec_fn=end_with_parent(at_parents_end),
            )

    def _output(self, name: str) -> IO[bytes]:
        """What a process prints while its disk takes nothing is lost; the process is needed all the same."""
        try:
            return open_private(self.folder.run_dir.logs / f"{self.node}.{name}.log", "ab")
        except OSError:
            return open(os.devnull, "wb")
