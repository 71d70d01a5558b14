"""The client of cli/start/fork_server.py, the process that has imported what coordinators and agents need.

It forks them, for machines that play many nodes in many small jobs, such as those of tests: the imports of five agents
take longer than the job.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import cast

import msgpack

from deadpool.host.child_processes import end_with_parent, interrupts_held

NUMBER = struct.Struct("q")
"""The format of the pipe from the fork server to the owner of a forked process: a process id, then an exit code."""


class ForkedProcess:
    """A process that is not this one's child, with as much of subprocess.Popen as a launcher needs."""

    def __init__(self, pipe: int, command: list[str]) -> None:
        self._pipe, self.args = pipe, command
        self.returncode: int | None = None
        self.pid = NUMBER.unpack(os.read(pipe, NUMBER.size))[0]

    def poll(self) -> int | None:
        return self._read(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._pipe], [], [], timeout_s)[0]:
            told = os.read(self._pipe, NUMBER.size)
            self.returncode = (
                NUMBER.unpack(told)[0] if told else -signal.SIGKILL
            )  # the server is gone, and its children with it
            os.close(self._pipe)
        return self.returncode


class CommandForks:
    """Forks commands of `deadpool`. Several threads may use it at once."""

    def __init__(self) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asking = threading.Lock()
        with theirs, interrupts_held():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "deadpool.cli.start.fork_server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                preexec_fn=end_with_parent(),
                process_group=0,  # an interrupt of the terminal is for the job, which ends its processes in order
            )

    def spawn(
        self,
        command: list[str],
        environment: dict[str, str],
        end_signal: int,
        output: int,
        descriptors: tuple[int, ...],
    ) -> ForkedProcess:
        """`output` is where both of its outputs go; `descriptors` keep their numbers."""
        ours, theirs = os.pipe()
        request = [command, environment, str(Path.cwd()), int(end_signal), list(descriptors)]
        try:
            with self._asking:
                socket.send_fds(self._link, [cast(bytes, msgpack.packb(request))], [output, theirs, *descriptors])
        finally:
            os.close(theirs)
        return ForkedProcess(ours, command)

    def close(self) -> None:
        self._link.close()
        self._process.wait()
