"""Forks coordinators and agents: a small job would spend most of its time on their imports.

Runs as a process of its own (`python -m`) with a socket as its first argument. A request is one msgpack packet:
[command, environment, folder, signal, descriptors], with two descriptors more than it names: its output, and a pipe
into which the process id goes and, later, the exit code. The others get the numbers that they have in the command.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import signal
import socket
import sys
from typing import Any

import msgpack

from deadpool.cli.main import main as command_line
from deadpool.control.console import close_console
from deadpool.control.launch.command_forks import NUMBER
from deadpool.host.child_processes import ForkLoop

# A subcommand imports what it needs when it is called, so these are imported here, before a fork.
_NEEDED = (
    *("deadpool.cli.start.addresses", "deadpool.control.agent.agent", "deadpool.host.private_files"),
    *(
        "deadpool.control.coordinator.coordinator",
        "deadpool.control.shell_registry",
        "deadpool.control.loops",
    ),
    *(
        "deadpool.control.coordinator.other_coordinators",
        "deadpool.control.hooks.event_hooks",
        "deadpool.views.metrics.endpoint",
    ),
)

_PACKET_BYTES = 1 << 20
_MOST_DESCRIPTORS = 8
_HIGH_DESCRIPTOR = 500  # descriptors are moved above it first, because the numbers that they need may be taken


class CommandForkServer:
    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._loop = ForkLoop(link, self._on_request, self._on_exit)
        self._pipes: dict[int, int] = {}  # by process

    def serve(self) -> None:
        """Returns when the other end of the socket is closed."""
        self._loop.serve()

    def _on_request(self) -> bool:
        packet, descriptors, _, _ = socket.recv_fds(self._link, _PACKET_BYTES, maxfds=_MOST_DESCRIPTORS)
        if not packet:
            return False
        request = msgpack.unpackb(packet)
        pid = self._loop.fork(lambda: _run(request, descriptors), end_signal=signal.Signals(request[3]))
        with contextlib.suppress(OSError):  # the child does it too: the group exists for both at once
            os.setpgid(pid, pid)
        output, pipe, *others = descriptors
        for descriptor in (output, *others):
            os.close(descriptor)
        os.write(pipe, NUMBER.pack(pid))
        self._pipes[pid] = pipe
        return True

    def _on_exit(self, pid: int, code: int) -> None:
        pipe = self._pipes.pop(pid)
        with contextlib.suppress(OSError):  # the other end of the pipe is closed
            os.write(pipe, NUMBER.pack(code))
        os.close(pipe)


def _run(request: list[Any], descriptors: list[int]) -> None:
    command, environment, folder, _, numbers = request
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    moved = [_move(descriptor) for descriptor in descriptors]
    os.closerange(3, _HIGH_DESCRIPTOR)
    for descriptor, number in zip((moved[0], moved[0], *moved[2:]), (1, 2, *numbers), strict=True):
        os.dup2(descriptor, number, inheritable=True)
    os.closerange(_HIGH_DESCRIPTOR, _HIGH_DESCRIPTOR + 2 * _MOST_DESCRIPTORS)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["deadpool", *command]
    try:
        command_line()
    finally:
        close_console()


def _move(descriptor: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
    os.close(descriptor)
    return moved


if __name__ == "__main__":
    for module in _NEEDED:
        importlib.import_module(module)
    server = CommandForkServer(socket.socket(fileno=int(sys.argv[1])))
    gc.collect()
    gc.freeze()
    server.serve()
    os._exit(0)
