"""What runs on each node of a Slurm job: an agent, and on some nodes a coordinator and a watch of the job; how they are
started, started again and ended.

Slurm sends signals to this process. It outlives its agent where the end of the job still has to be told to Slurm, which
the last node that is left does.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import IO

from deadpool.clusters.commands import agent_words, coordinator_words
from deadpool.clusters.slurm import client
from deadpool.clusters.slurm.batch import command
from deadpool.clusters.slurm.client import SlurmError
from deadpool.clusters.slurm.options import Allocation, describe
from deadpool.clusters.slurm.run_folder import RunFolder
from deadpool.clusters.slurm.watch import JobWatch
from deadpool.config.environment import NOTICE_VARIABLE, SECRET_FILE_VARIABLE, SECRET_VARIABLE
from deadpool.config.job_config import JobConfig
from deadpool.control.console import print_line
from deadpool.host.child_processes import end_with_parent, interrupts_held
from deadpool.host.private_files import open_private
from deadpool.protocol.identity import Address
from deadpool.wire.credentials import handed_over
from deadpool.wire.deadline import address_of, address_towards

_POLL_S = 0.2
_BEAT_S = 3.0

Process = subprocess.Popen[bytes]
_STOP_S = 10.0
_RESTARTS = 20


@dataclass(slots=True)
class SlurmNode:
    allocation: Allocation
    folder: RunFolder
    config: JobConfig
    program: Sequence[str]
    preload: Sequence[str] = ()
    joins_other: bool = False  # this node belongs to a one-node job, and joins another Slurm job as a spare
    requeue: bool = False
    warn_s: float = 120.0
    _processes: NodeProcesses = field(init=False)
    _place: str = ""  # of the coordinator of this node
    _places: list[str] = field(default_factory=list)  # of all coordinators
    _watch: JobWatch | None = None
    _beaten_at: float = 0.0
    _is_leader: bool = False
    _is_cancelled: bool = False
    _signals: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._processes = NodeProcesses(self.folder, self.allocation.own)

    def run(self) -> int:
        """Runs until the job ends or this node leaves it, and returns the exit code of this node's task."""
        for sig in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sig, self._on_signal)
        try:
            self._start()
            code = self._wait()
            return self._finish(code)
        finally:
            self._stop()

    # --- start --------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        own, hosts = self.allocation.own, self.allocation.hosts
        if own == hosts[0] and not self.joins_other:
            self.folder.begin(describe(self.allocation, self.config, self.program, self.preload, ()))
        described = self.folder.await_begun()
        coordinators = list(described["coordinators"])
        acts = own in coordinators and not self.joins_other
        if acts:
            self._place = f"{self._address()}:{_free_port()}"
            self.folder.publish_place(coordinators.index(own), self._place)
        self._places = self.folder.await_places(len(coordinators))
        if acts:
            self._processes.start_coordinator(self._words_for_coordinator(faults=True))
            self._watch = JobWatch(
                self.allocation,
                self.folder,
                place=self._place,
                spares=described["spares"],
                is_durable=bool(self.config.durable),
                requeue=self.requeue,
                warn_s=self.warn_s,
            )
            self._watch.start()
        self._processes.start_agent(
            self._words_for_agent(spare=self.joins_other or own not in hosts[: self.config.nodes])
        )

    def _address(self) -> str:
        """Returns this node's address as the others see it: the one that leads to another node of the job."""
        if self.config.interface:
            return address_of(self.config.interface)
        other = next((host for host in self.allocation.hosts if host != self.allocation.own), self.allocation.own)
        return address_towards(Address(host=socket.gethostbyname(client.node_address(other)), port=9))

    def _words_for_coordinator(self, *, faults: bool) -> list[str]:
        host, _, port = self._place.rpartition(":")
        return coordinator_words(
            self.config, host=host, port=int(port), places=self._places, run_dir=self.folder.path, faults=faults
        )

    def _words_for_agent(self, *, spare: bool) -> list[str]:
        own = self.allocation.own
        return agent_words(
            self.config,
            self.program,
            name=own,
            host=None,
            places=self._places,
            logs=self.folder.run_dir.logs,
            spare=spare,
            rack=self.allocation.racks.get(own),
            preload=self.preload,
        )

    # --- while it runs ------------------------------------------------------------------------------------------------

    def _wait(self) -> int:
        """Waits until the agent has ended, and with it the coordinator of the job that it was in. It returns the
        agent's exit code. A node that was drained keeps its coordinator as long as the job needs it."""
        assert self._processes.agent is not None
        while True:
            while self._signals:
                self._handle(self._signals.pop(0))
            code = self._processes.agent.poll()
            self._tend_coordinator()
            if code is not None and (not self._processes.has_coordinator or self.folder.result() is not None):
                return code
            time.sleep(_POLL_S)

    def _tend_coordinator(self) -> None:
        coordinator = self._processes.coordinator
        if coordinator is None:
            return
        if time.monotonic() > self._beaten_at + _BEAT_S:
            self._beaten_at = time.monotonic()
            self._is_leader = self._leads()
            if self._is_leader and self._processes.has_coordinator:
                with contextlib.suppress(OSError):  # a disk that takes nothing ends no node
                    self.folder.beat()
        code = coordinator.poll()
        if code is not None and code < 0 and not self._is_cancelled:
            self._processes.restart_coordinator(self._words_for_coordinator(faults=False))
        elif code is not None and code >= 0 and self._leads():
            with contextlib.suppress(OSError):  # it is tried again with the next look
                self.folder.set_result(code, "the coordinator ended")

    def _leads(self) -> bool:
        return self.folder.run_dir.is_led_from(self._place)

    # --- signals ------------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._processes.agent is None:
            sys.exit(128 + number)
        self._signals.append(number)

    def _handle(self, number: int) -> None:
        """SIGTERM of one node: a spare takes its ranks. SIGTERM of the whole allocation: no node of it could, so
        training goes on as long as it may. A job that was cancelled ends at once."""
        agent = self._processes.agent
        assert agent is not None
        facts = self._job() if number == signal.SIGTERM and not self.joins_other else None
        if facts is not None and not facts.is_running:
            self._is_cancelled = True
            self._processes.cancel()
        elif facts is not None and self._ends_soon(facts):
            print_line(f"[deadpool] node {self.allocation.own}: Slurm ends this job soon; training goes on till then")
        elif agent.poll() is None:
            agent.send_signal(number)

    def _job(self) -> client.JobFacts | None:
        try:
            return client.job(self.allocation.job_id)
        except SlurmError:
            return None

    def _ends_soon(self, facts: client.JobFacts) -> bool:
        """A site may grant a preempted job more time than that of the notice."""
        if (facts.ends_at or math.inf) < time.time() + self.warn_s:
            return True
        try:
            return client.is_preempted(facts.job_id)
        except SlurmError:
            return False

    # --- end ----------------------------------------------------------------------------------------------------------

    def _finish(self, code: int) -> int:
        if self._watch is not None:
            self._watch.stop()
        if self._is_cancelled or self.joins_other:
            return code
        if self.folder.result() is not None:
            if self._is_leader:
                end_slurm_job(self.folder, self.allocation.job_id)
        elif code != 0 and not another_coordinator_acts(self.folder, self.config.node_timeout_s):
            print_line(f"[deadpool] node {self.allocation.own}: no coordinator is left, so that the job has failed")
            self.folder.set_result(1, "no coordinator is left")
            end_slurm_job(self.folder, self.allocation.job_id)
        return code

    def _stop(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        self._processes.stop()


def _free_port() -> int:
    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])


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
