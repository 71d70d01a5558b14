"""What runs on each node of a Slurm job: an agent, and on some nodes a coordinator and a watch of the job.

Slurm sends signals to this process. It outlives its agent where the end of the job still has to be told to Slurm.
"""

from __future__ import annotations

import dataclasses
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

from deadpool.child_processes import end_with_parent, interrupts_held
from deadpool.clusters.slurm import client
from deadpool.clusters.slurm.allocation import Allocation
from deadpool.clusters.slurm.batch_script import command
from deadpool.clusters.slurm.client import SlurmError
from deadpool.clusters.slurm.job_settings import describe
from deadpool.clusters.slurm.run_folder import RunFolder
from deadpool.clusters.slurm.watch import JobWatch
from deadpool.config import JobConfig, settings_for
from deadpool.control.console import print_line
from deadpool.environment import NOTICE_VARIABLE, SECRET_FILE_VARIABLE, SECRET_VARIABLE
from deadpool.owner_only import open_private
from deadpool.protocol.topology import Address
from deadpool.setting import AGENT, COORDINATOR
from deadpool.wire.interfaces import address_of, address_towards

Process = subprocess.Popen[bytes]
_POLL_S = 0.2
_BEAT_S = 3.0
_ACKNOWLEDGED_S = 10.0
"""After the end of the job, for the batch script to say that it ends the Slurm job."""
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
    _agent: Process | None = None
    _coordinator: Process | None = None
    _coordinator_words: list[str] = field(default_factory=list)
    _place: str = ""
    _watch: JobWatch | None = None
    _restarts: int = 0
    _beaten_at: float = 0.0
    _is_leader: bool = False
    _is_cancelled: bool = False
    _signals: list[int] = field(default_factory=list)

    def run(self) -> int:
        """Until the job ends or this node leaves it. Returns the exit code of this node's task."""
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
        places = self.folder.await_places(len(coordinators))
        if acts:
            self._coordinator_words = self._words_for_coordinator(places)
            self._coordinator = self._spawn(self._coordinator_words, "coordinator")
            self._watch = JobWatch(
                self.allocation,
                self.folder,
                place=self._place,
                spares=described["spares"],
                requeue=self.requeue,
                warn_s=self.warn_s,
            )
            self._watch.start()
        self._start_agent(places, spare=self.joins_other or own not in hosts[: self.config.nodes])

    def _address(self) -> str:
        """Of this node, as the others see it: the one that leads to another node of the job."""
        if self.config.interface:
            return address_of(self.config.interface)
        other = next((host for host in self.allocation.hosts if host != self.allocation.own), self.allocation.own)
        return address_towards(Address(host=socket.gethostbyname(client.node_address(other)), port=9))

    def _words_for_coordinator(self, places: list[str]) -> list[str]:
        host, _, port = self._place.rpartition(":")
        own = {"host": host, "port": port, "interface": "", "coordinators": ",".join(places[1:] and places)}
        values = {**dataclasses.asdict(self.config), **own}
        words = [word for each in settings_for(COORDINATOR) for word in each.words(values[each.name])]
        return ["coordinator", f"--run-dir={self.folder.path}", *words]

    def _start_agent(self, places: list[str], *, spare: bool) -> None:
        own = self.allocation.own
        given = dataclasses.asdict(self.config) | {"metrics_port": self.config.metrics_port_of(1)}
        settings = [each for each in settings_for(AGENT) if each.name not in ("host", "interface")]
        words = [word for each in settings for word in each.words(given[each.name])]
        words += [f"--interface={self.config.interface}"] if self.config.interface else []
        words += [f"--join={','.join(places)}", f"--name={own}", f"--logs={self.folder.run_dir.logs}"]
        rack = self.allocation.racks.get(own)
        words += [f"--rack={rack}"] if rack else []
        words += [f"--preload={package}" for package in self.preload]
        words += ["--spare"] if spare else []
        self._agent = self._spawn(["agent", *words, "--", *self.program], "agent")

    def _spawn(self, words: list[str], name: str) -> Process:
        """Its output goes to a file: the way to srun's output ends with the batch host."""
        path = self.folder.run_dir.logs / f"{self.allocation.own}.{name}.log"
        own = {
            SECRET_FILE_VARIABLE: str(self.folder.run_dir.secret_file),
            NOTICE_VARIABLE: str(self.folder.notice_file),
        }
        variables = {**os.environ, **own}
        variables.pop(SECRET_VARIABLE, None)  # it would be the secret of another job
        with open_private(path, "ab") as output, interrupts_held():
            return subprocess.Popen(
                [*command(), *words],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                preexec_fn=end_with_parent(signal.SIGKILL if name == "agent" else signal.SIGTERM),
            )

    # --- while it runs ------------------------------------------------------------------------------------------------

    def _wait(self) -> int:
        """Until the agent has ended, and with it the coordinator of the job that it was in. Returns the agent's exit
        code. A node that was drained keeps its coordinator as long as the job needs it."""
        assert self._agent is not None
        while True:
            while self._signals:
                self._handle(self._signals.pop(0))
            code = self._agent.poll()
            self._tend_coordinator()
            coordinator_ended = self._coordinator is None or self._coordinator.poll() is not None
            if code is not None and (coordinator_ended or self.folder.result() is not None):
                return code
            time.sleep(_POLL_S)

    def _tend_coordinator(self) -> None:
        if self._coordinator is None:
            return
        if time.monotonic() > self._beaten_at + _BEAT_S:
            self._beaten_at = time.monotonic()
            self._is_leader = self._leads()
            if self._is_leader and self._coordinator.poll() is None:
                self.folder.beat()
        code = self._coordinator.poll()
        if code is None:
            return
        if code < 0 and self._restarts < _RESTARTS and not self._is_cancelled:
            self._restarts += 1
            self._coordinator = self._spawn(self._coordinator_words, "coordinator")
        elif code >= 0 and self._leads():
            self.folder.set_result(code, "the coordinator ended")

    def _leads(self) -> bool:
        run_dir = self.folder.run_dir
        return run_dir.is_known and str(run_dir.coordinator()) == self._place

    # --- signals ------------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._agent is None:
            sys.exit(128 + number)
        self._signals.append(number)

    def _handle(self, number: int) -> None:
        """SIGTERM of one node: a spare takes its ranks. SIGTERM of the whole allocation: no node of it could, so
        training goes on as long as it may. A job that was cancelled ends at once."""
        assert self._agent is not None
        facts = self._job() if number == signal.SIGTERM and not self.joins_other else None
        if facts is not None and not facts.is_running:
            self._is_cancelled = True
            self._agent.send_signal(signal.SIGINT)
            if self._coordinator is not None:
                self._coordinator.send_signal(signal.SIGTERM)
        elif facts is not None and (facts.ends_at or math.inf) < time.time() + self.warn_s:
            print_line(f"[deadpool] node {self.allocation.own}: Slurm ends this job soon; training goes on till then")
        elif self._agent.poll() is None:
            self._agent.send_signal(number)

    def _job(self) -> client.JobFacts | None:
        try:
            return client.job(self.allocation.job_id)
        except SlurmError:
            return None

    # --- end ----------------------------------------------------------------------------------------------------------

    def _finish(self, code: int) -> int:
        if self._watch is not None:
            self._watch.stop()
        if self._is_cancelled or self.joins_other:
            return code
        if self.folder.result() is not None:
            if self._is_leader:
                self._end_job()
        elif code != 0 and not self._another_coordinator_acts():
            self.folder.set_result(1, "no coordinator is left")
            self._end_job()
        return code

    def _another_coordinator_acts(self) -> bool:
        """Asked when this node's agent failed. If no coordinator acts any more the whole job has failed. A node that
        was cut off sees the run folder again together with the coordinator's signs of life, if at all."""
        last, deadline = self.folder.last_beat(), time.monotonic() + max(30.0, 6 * self.config.node_timeout_s)
        while time.monotonic() < deadline:
            if self.folder.last_beat() != last or self.folder.result() is not None:
                return True
            time.sleep(_POLL_S)
        return False

    def _end_job(self) -> None:
        """The batch script ends the Slurm job if it is there. Otherwise this is the last one out."""
        deadline = time.monotonic() + _ACKNOWLEDGED_S
        while time.monotonic() < deadline:
            if self.folder.is_acknowledged():
                return
            time.sleep(_POLL_S)
        try:
            facts = client.job(self.allocation.job_id)
            if facts is not None and facts.is_running:
                client.end_job(self.allocation.job_id, self.folder.result() or 0)
        except SlurmError as error:
            print_line(f"[deadpool] job {self.allocation.job_id} could not be ended ({error}): use scancel")

    def _stop(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        for process in (self._coordinator, self._agent):
            if process is not None and process.poll() is None:
                process.terminate()
                try:
                    process.wait(_STOP_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def _free_port() -> int:
    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])
