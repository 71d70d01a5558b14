"""The processes of one node of a Slurm job, and how they end.

`NodeProcesses`: the agent of a node and, on some nodes, a coordinator: how they are started, started again and
ended.

`another_coordinator_acts` and `end_slurm_job`: the end of a job, as the last node that is left tells it to Slurm.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from deadpool.clusters.slurm import client
from deadpool.clusters.slurm.batch import command
from deadpool.clusters.slurm.client import SlurmError
from deadpool.clusters.slurm.run_folder import RunFolder
from deadpool.config.environment import NOTICE_VARIABLE, SECRET_FILE_VARIABLE, SECRET_VARIABLE
from deadpool.control.console import print_line
from deadpool.host.child_processes import end_with_parent, interrupts_held
from deadpool.host.private_files import open_private
from deadpool.wire.credentials import handed_over

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


_POLL_S = 0.2
_ACKNOWLEDGED_S = 10.0
"""The time that the batch script has to say that it ends the Slurm job."""
_LEAST_S = 30.0


def another_coordinator_acts(folder: RunFolder, node_timeout_s: float) -> bool:
    """Asked when this node's agent failed. If no coordinator acts any more the whole job has failed. A node that was
    cut off sees the run folder again together with the coordinator's signs of life, if at all."""
    last, deadline = folder.last_beat(), time.monotonic() + max(_LEAST_S, 6 * node_timeout_s)
    while time.monotonic() < deadline:
        if folder.last_beat() != last or folder.result() is not None:
            return True
        time.sleep(_POLL_S)
    return False


def end_slurm_job(folder: RunFolder, job_id: str) -> None:
    """The batch script ends the Slurm job if it is there. Otherwise this is the last one out."""
    deadline = time.monotonic() + _ACKNOWLEDGED_S
    while time.monotonic() < deadline:
        if folder.is_acknowledged():
            return
        time.sleep(_POLL_S)
    try:
        facts = client.job(job_id)
        if facts is not None and facts.is_running:
            client.end_job(job_id, folder.result() or 0)
    except SlurmError as error:
        print_line(f"[deadpool] job {job_id} could not be ended ({error}): use scancel")
