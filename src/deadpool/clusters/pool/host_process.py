"""One machine of a pool and its link to the pool.

`HostProcess`: the process of one machine of a pool: it starts and stops agents, looks at the machine's lease, and
tells the pool.

An agent that has taken the machine is no longer tied to this process: it goes on when this process dies, and the one
that is started next finds the lease taken. The others leave their jobs with it.

`PoolUpstream`: the connection of a machine to its pool. Without one the machine goes on, and tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, assert_never

from deadpool.clusters.pool.server import machine_identity, read_jobs, write_jobs
from deadpool.config.environment import SECRET_FILE_VARIABLE, SECRET_VARIABLE, TLS_VARIABLE
from deadpool.control.console import print_line
from deadpool.control.trainers.parked_command import ParkedCommand
from deadpool.errors import DeadPoolError
from deadpool.events.event import Event
from deadpool.events.log import EventLog
from deadpool.host.child_processes import end_with_parent, interrupts_held
from deadpool.host.private_files import ProcessLock, make_private_folder, open_private
from deadpool.protocol.effects import Emit, StartParkedWork, StopParkedWork
from deadpool.protocol.features.leases.pool.host import (
    AgentExited,
    Assigned,
    HostEffect,
    HostInput,
    LeaseSeen,
    PoolHost,
    ReadySeen,
    StartAgent,
    StopAgent,
)
from deadpool.protocol.identity import Address
from deadpool.protocol.inputs import Tick
from deadpool.protocol.messages import Assignment, JoinRefused, MachineState, PoolJob, PoolNotice
from deadpool.wire.control_link import ControlLink, connect
from deadpool.wire.credentials import Credentials
from deadpool.wire.deadline import notice_silence

_ATTEMPT_S = 2.0
_PAUSE_S = 0.5
_REFUSED_PAUSE_S = 5.0


class PoolUpstream:
    def __init__(self, find: Callable[[], tuple[Address, Credentials]]) -> None:
        """`find` is asked before every attempt: a pool that is started again may listen elsewhere."""
        self._find = find
        self._link: ControlLink | None = None
        self._reason = ""  # printed when it changes
        self._pause_s = _PAUSE_S

    def send(self, message: Any) -> None:
        """Sends a message, or drops it without a connection: a pool is told everything when the connection is back."""
        if self._link is not None:
            self._link.send(message)

    async def run(self, on_assignment: Callable[[Assignment], None], *, on_connected: Callable[[], None]) -> None:
        while True:
            reason = await self._connect_once(on_assignment, on_connected)
            if reason != self._reason:
                self._reason = reason
                print_line(f"[deadpool] no pool: {reason}; this machine goes on with what it was told last")
            await asyncio.sleep(self._pause_s)

    async def _connect_once(self, on_assignment: Callable[[Assignment], None], on_connected: Callable[[], None]) -> str:
        self._pause_s = _PAUSE_S
        try:
            address, credentials = self._find()
            self._link = link = await connect(address, credentials, patience_s=_ATTEMPT_S)
        except TimeoutError:
            return "no process answers there"
        except (OSError, DeadPoolError) as error:
            return str(error)
        notice_silence(link.streams[1])
        try:
            on_connected()
            async for message in link.messages():
                match message:
                    case Assignment():
                        self._reason = ""
                        on_assignment(message)
                    case PoolNotice(text=text):
                        print_line(f"[deadpool] the pool says: {text}")
                    case JoinRefused(reason=reason):
                        self._pause_s = _REFUSED_PAUSE_S
                        return reason
                    case _:
                        pass  # a pool says nothing else
            return link.lost_reason
        finally:
            link.abort()
            self._link = None


LOOK_S = 0.05
_LEAVE_S = 3.0
OWNER_PREFIX = "job "
"""What agents write into the lock file, before the name of their job."""
_NOT_STARTED = 127
"""The exit code that a shell gives to a command that cannot be run."""


class HostProcess:
    def __init__(
        self, name: str, folder: Path, upstream: PoolUpstream, *, memory_bytes: int, command: str, log: EventLog
    ) -> None:
        self._folder, self._upstream, self._log = folder, upstream, log
        machine = machine_identity(folder)
        self._core = PoolHost(name, memory_bytes=memory_bytes, works=bool(command), machine=machine)
        self._lease = ProcessLock(folder / "lease", "the pool")
        told = {"node": name, "logs": str(folder)}
        self._command = ParkedCommand(command, folder / f"{name}.parked.log", told, on_ended=self._feed)
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._told: MachineState | None = None
        self._failed: dict[str, str] = {}  # why an agent could not be started, by job: printed when it changes

    async def run(self) -> None:
        """Runs until it is cancelled."""
        upstream = asyncio.create_task(self._upstream.run(self._on_assignment, on_connected=self._on_connected))
        try:
            self._feed(LeaseSeen(job=self._find_leased()))
            self._feed(Assigned(jobs=read_jobs(self._folder / "jobs.json")))
            while not upstream.done():
                self._look()
                await asyncio.sleep(LOOK_S)
            upstream.result()
        finally:
            upstream.cancel()
            await self._close()

    # --- what is seen ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        for job, process in list(self._agents.items()):
            if (code := process.poll()) is not None:
                del self._agents[job]
                (self._job_folder(job) / "ready").unlink(missing_ok=True)
                self._feed(AgentExited(job=job, code=code))
        self._feed(LeaseSeen(job=self._find_leased()))
        self._feed(ReadySeen(jobs=frozenset(job for job in self._agents if (self._job_folder(job) / "ready").exists())))

    def _find_leased(self) -> str:
        owner = self._lease.find_owner()
        return "" if owner is None else owner.removeprefix(OWNER_PREFIX)

    def _on_assignment(self, assignment: Assignment) -> None:
        try:
            write_jobs(self._folder / "jobs.json", assignment.jobs)
        except OSError as error:
            print_line(f"[deadpool] the jobs of this machine are not kept on disk for its next start: {error}")
        self._feed(Assigned(jobs=assignment.jobs))

    def _on_connected(self) -> None:
        self._told = None
        self._tell()

    def _tell(self) -> None:
        if self._told != self._core.state:
            self._told = self._core.state
            self._upstream.send(self._told)

    def _feed(self, input: HostInput) -> None:
        now = time.monotonic()
        for effect in [*self._core.step(input, now=now), *self._core.step(Tick(), now=now)]:
            self._perform(effect)
        self._tell()

    # --- what is done ------------------------------------------------------------------------------------------------

    def _perform(self, effect: HostEffect) -> None:
        match effect:
            case StartAgent(job=job):
                self._try_to_start(job)
            case StopAgent(job=job):
                if job in self._agents:  # not, if it could not be started a moment ago
                    self._agents[job].terminate()
            case StartParkedWork(start=number):
                self._command.start(number)
            case StopParkedWork():
                self._command.stop()
            case Emit(event=event):
                self._record(event)
            case _ as never:
                assert_never(never)

    def _record(self, event: Event) -> None:
        self._log.write(event.record(t=time.time()))

    def _job_folder(self, job: str) -> Path:
        return self._folder / "jobs" / job

    def _try_to_start(self, job: PoolJob) -> None:
        """A job that this machine cannot serve takes it from no other job: it is tried again ever more seldom."""
        try:
            self._agents[job.name] = self._start(job)
            self._failed.pop(job.name, None)
        except (OSError, ValueError, subprocess.SubprocessError, DeadPoolError) as error:
            reason = str(error)
            if self._failed.get(job.name) != reason:
                self._failed[job.name] = reason
                what_now = "other jobs are served, and this one is tried again"
                print_line(f"[deadpool] no agent of job {job.name} can be started here: {reason}; {what_now}")
            ended = AgentExited(job=job.name, code=_NOT_STARTED, reason=reason)
            asyncio.get_running_loop().call_soon(self._feed, ended)

    def _start(self, job: PoolJob) -> subprocess.Popen[bytes]:
        """Starts an agent for a job. The agent's environment names the secret of its own job, and of no other."""
        folder = self._job_folder(job.name)
        make_private_folder(folder / "logs")
        words = ["agent", "--spare", f"--join={job.coordinators}", f"--name={self._core.name}", f"--tls={job.tls}"]
        words += [f"--logs={folder / 'logs'}", f"--ready-file={folder / 'ready'}", *job.options]
        words += [f"--lease={self._folder / 'lease'}", f"--job={job.name}", "--", *job.script]
        with open_private(folder / "console.log", "ab") as output, interrupts_held():
            return subprocess.Popen(
                [sys.executable, "-m", "deadpool.cli.main", *words],
                env=agent_environment(job),
                cwd=job.folder or None,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                preexec_fn=end_with_parent(signal.SIGTERM),
            )

    async def _close(self) -> None:
        """Agents leave their jobs. One that has the machine stays, as it would if this process had died."""
        self._command.stop()
        leased = self._find_leased()
        leaving = {job: process for job, process in self._agents.items() if job != leased}
        for process in leaving.values():
            process.terminate()
        deadline = time.monotonic() + _LEAVE_S
        while any(process.poll() is None for process in leaving.values()) and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_S)
        for process in leaving.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if leased:
            print_line(f"[deadpool] job {leased} keeps machine {self._core.name} until it gives it back")
        await self._command.close()
        self._lease.close()


def agent_environment(job: PoolJob) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if name != SECRET_VARIABLE}
    return {**variables, SECRET_FILE_VARIABLE: job.secret_file, TLS_VARIABLE: job.tls}
