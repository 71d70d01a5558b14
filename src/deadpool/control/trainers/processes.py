"""The trainer processes of one node: the fork server starts them, their output is printed and logged, their end
reported.

The fork server reports an exit. The end of the output says nothing: a trainer's own children may hold it open for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from deadpool.config.environment import (
    AGENT_VARIABLE,
    CODE_FOLDERS_VARIABLE,
    HOST_VARIABLE,
    JOURNAL_VARIABLE,
    PARKED_STATE_VARIABLE,
    RENDEZVOUS_VARIABLE,
    TRAINER_VARIABLE,
)
from deadpool.control.console import DiskThread
from deadpool.control.launch.run_dir import journal_folder
from deadpool.control.trainers.fork_client import answer, request, start_fork_server
from deadpool.control.trainers.log import TrainerLog
from deadpool.control.trainers.process_activity import OomWatch
from deadpool.events.log import SLOW_S, Trouble
from deadpool.host.code_folders import INDUCTOR_VARIABLE, code_folders
from deadpool.protocol.identity import Address

_LINE_LIMIT_BYTES = 1 << 20
_LAST_OUTPUT_S = 0.5
_END_S = 5.0


@dataclass(slots=True)
class _Running:
    forwarding: asyncio.Task[None]
    pid: int | None = None  # None until the fork server has reported it
    pidfd: int | None = None


class TrainerProcesses:
    def __init__(
        self,
        *,
        script: list[str],
        door: str,
        host: str,
        logs: Path,
        log_file_bytes: int,
        show: Callable[[str, str], None],
        on_exit: Callable[[str, int, str], None],
        on_failure: Callable[[str], None],
        fork_server: socket.socket | None = None,
        preload: Sequence[str] = (),
        parked_state: str = "keep",
    ) -> None:
        """`show` gets the name of a trainer and a line of its output.

        `fork_server` is the socket of one that runs already; else this node starts its own, which imports `preload`.
        `on_failure` gets the reason where that fails.
        """
        self._script, self._logs, self._show, self._on_exit = script, logs, show, on_exit
        self._log_file_bytes = log_file_bytes
        self._open_logs: dict[str, TrainerLog] = {}
        self._ended_logs: list[TrainerLog] = []  # whose last lines the disk may not have taken yet
        self._dropped_by_ended = 0  # lines of logs that are written and closed by now
        self._disk = DiskThread("deadpool-logs")
        self._variables = {
            AGENT_VARIABLE: door,
            HOST_VARIABLE: host,
            JOURNAL_VARIABLE: str(journal_folder(logs)),
            PARKED_STATE_VARIABLE: parked_state,
            CODE_FOLDERS_VARIABLE: os.pathsep.join(map(str, code_folders(os.environ))),
        }
        if INDUCTOR_VARIABLE in os.environ:  # the fork server may be older than what this node's user has chosen
            self._variables[INDUCTOR_VARIABLE] = os.environ[INDUCTOR_VARIABLE]
        self.rendezvous: Address | None = None  # of this node's store, once it listens
        self._running: dict[str, _Running] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._fork_server, self._preload, self._on_failure = fork_server, preload, on_failure
        self._fork_server_process: subprocess.Popen[bytes] | None = None
        self._all_ended = asyncio.Event()
        self._oom = OomWatch()

    def start(self, name: str) -> None:
        output, theirs = os.pipe()
        variables = {**self._variables, TRAINER_VARIABLE: name, RENDEZVOUS_VARIABLE: str(self.rendezvous)}
        self._disk.start()
        self._open_logs[name] = TrainerLog(self._logs, name, file_bytes=self._log_file_bytes)
        loop = asyncio.get_running_loop()
        self._running[name] = _Running(loop.create_task(self._forward_output(name, output)))
        request(self._open_fork_server(), "trainer", name, self._script, variables, descriptor=theirs)
        os.close(theirs)

    def import_modules(self, modules: Sequence[str]) -> None:
        """Has the fork server import these, so that trainers that are started afterwards need not."""
        request(self._open_fork_server(), "import", list(modules))

    def signal(self, name: str, sig: int) -> None:
        if name in self._running and self._fork_server is not None:
            request(self._fork_server, "signal", name, sig)

    def mark_fault(self, cause: str) -> None:
        for log in self._open_logs.values():
            self._disk.do(partial(log.fault, cause))

    def mark_seat(self, name: str, rank: int, cause: str) -> None:
        if name in self._open_logs:
            log = self._open_logs[name]
            self._disk.do(partial(log.mark, cause, f"this process is rank {rank} from here on"))

    def log_trouble(self) -> Trouble | None:
        """Why lines of logs are not written; they are tried again with each call. None: all are written."""
        written = [log for log in self._ended_logs if log.trouble() is None]
        self._dropped_by_ended += sum(log.dropped for log in written)
        self._ended_logs = [log for log in self._ended_logs if log not in written]
        found = []
        for log in (*self._open_logs.values(), *self._ended_logs):
            if (trouble := log.trouble()) is not None:
                found.append(trouble)
                self._disk.do(log.close if log in self._ended_logs else log.flush)
        if not found and self._disk.busy_s() > SLOW_S:
            found = [Trouble(f"a write takes longer than {SLOW_S:g} s", self._disk.waiting, 0)]
        if not found:
            return None
        return Trouble(found[0].reason, sum(each.waiting for each in found), self.lines_dropped())

    def lines_dropped(self) -> int:
        """Lines of logs that are lost for ever, of all processes so far."""
        logs = (*self._open_logs.values(), *self._ended_logs)
        return self._dropped_by_ended + sum(log.dropped for log in logs) + self._disk.left_out

    def pids(self) -> dict[str, int]:
        return {name: running.pid for name, running in self._running.items() if running.pid is not None}

    async def close(self) -> None:
        """Kills and reaps all trainers, and still forwards their last output.

        A trainer that the fork server has not started yet ends with the fork server.
        """
        for name in self._running:
            self.signal(name, signal.SIGKILL)
        if self.pids():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_ended.wait(), _END_S)
        self._close_fork_server()
        await asyncio.gather(*self._closing, return_exceptions=True)
        await asyncio.to_thread(self._disk.close)

    # --- the fork server ---------------------------------------------------------------------------------------------

    def _open_fork_server(self) -> socket.socket:
        if self._fork_server is None:
            environment = dict(os.environ)
            environment.setdefault("OMP_NUM_THREADS", "1")
            self._fork_server, self._fork_server_process = start_fork_server(environment, self._preload)
        asyncio.get_running_loop().add_reader(
            self._fork_server, self._on_answer, self._fork_server
        )  # a second call changes nothing
        return self._fork_server

    def _close_fork_server(self) -> None:
        """A fork server ends when our end of its socket is closed."""
        if self._fork_server is not None:
            asyncio.get_running_loop().remove_reader(self._fork_server)
            self._fork_server.close()
            self._fork_server = None
        if self._fork_server_process is not None:
            self._fork_server_process.kill()
            self._fork_server_process.wait()
            self._fork_server_process = None

    def _on_answer(self, fork_server: socket.socket) -> None:
        match answer(fork_server):
            case ["started", name, pid]:
                self._started(self._running[name], pid)
            case ["exited", name, code]:
                self._exited(name, code)
            case ["failed", reason]:
                self._on_failure(reason)
            case None:
                self._fork_server_lost()

    def _started(self, running: _Running, pid: int) -> None:
        running.pid = pid
        with contextlib.suppress(ProcessLookupError):  # it has ended and was reaped: the next answer says so
            running.pidfd = os.pidfd_open(pid)

    def _fork_server_lost(self) -> None:
        """The trainers end with the fork server, but only the end of each one proves that it writes to no slot any
        more."""
        self._close_fork_server()
        for name, running in list(self._running.items()):
            if running.pidfd is None:
                self._exited(name, -signal.SIGKILL)
            else:
                asyncio.get_running_loop().add_reader(running.pidfd, self._exited, name, -signal.SIGKILL)

    def _exited(self, name: str, code: int) -> None:
        running = self._running.pop(name)
        if running.pidfd is not None:
            asyncio.get_running_loop().remove_reader(running.pidfd)
            os.close(running.pidfd)
        task = asyncio.get_running_loop().create_task(_end_forwarding(running.forwarding))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        if not self.pids():
            self._all_ended.set()
        self._on_exit(name, code, self._oom.explain(code))

    # --- their output -----------------------------------------------------------------------------------------------

    async def _forward_output(self, name: str, descriptor: int) -> None:
        reader = asyncio.StreamReader(limit=_LINE_LIMIT_BYTES)
        loop = asyncio.get_running_loop()
        pipe = os.fdopen(descriptor, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        log = self._open_logs[name]
        try:
            while line := await reader.readline():
                text = line.decode(errors="replace").rstrip("\n")
                self._disk.do(partial(log.write, text), len(line))
                self._show(name, text)
        finally:
            transport.close()
            self._disk.do(partial(self._end_log, self._open_logs.pop(name)))

    def _end_log(self, log: TrainerLog) -> None:
        """Closes a log, in the disk's thread."""
        log.close()
        if log.trouble() is not None:
            self._ended_logs.append(log)
        else:
            self._dropped_by_ended += log.dropped


async def _end_forwarding(forwarding: asyncio.Task[None]) -> None:
    await asyncio.wait([forwarding], timeout=_LAST_OUTPUT_S)
    forwarding.cancel()
