"""A process that has imported the agent and the coordinator, and forks them: a small job spends its time on imports.

Runs as a process of its own (`python -m`) with a socket as its first argument. A request is one msgpack packet:
[command, environment, folder, signal, descriptors], and two descriptors more than it names: its output, and a pipe into
which the process id goes and, later, the exit code. The others get the numbers that they have in the command.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import selectors
import signal
import socket
import sys
import traceback
from typing import Any

import msgpack

from deadpool.chaos.strangers.fork_wire import NUMBER
from deadpool.child_processes import end_with_parent
from deadpool.cli.main import main as command_line

_PACKET_BYTES = 1 << 20
_MOST_DESCRIPTORS = 8
_OUT_OF_THE_WAY = 500  # descriptors are moved there first: their numbers may be taken


class ForkServer:
    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._ready = selectors.DefaultSelector()
        self._ready.register(link, selectors.EVENT_READ)
        self._pipes: dict[int, tuple[int, int]] = {}  # process -> its pidfd and its pipe

    def serve(self) -> None:
        """Until the other end is closed."""
        while True:
            for key, _ in self._ready.select():
                if key.data is not None:
                    self._ended(key.data)
                elif not self._answer():
                    return

    def _answer(self) -> bool:
        packet, descriptors, _, _ = socket.recv_fds(self._link, _PACKET_BYTES, maxfds=_MOST_DESCRIPTORS)
        if not packet:
            return False
        request = msgpack.unpackb(packet)
        arm = end_with_parent(signal.Signals(request[3]))
        pid = os.fork()
        if not pid:
            arm()
            _be(request, descriptors)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        output, pipe, *others = descriptors
        for descriptor in (output, *others):
            os.close(descriptor)
        os.write(pipe, NUMBER.pack(pid))
        self._pipes[pid] = os.pidfd_open(pid), pipe
        self._ready.register(self._pipes[pid][0], selectors.EVENT_READ, pid)
        return True

    def _ended(self, pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        pidfd, pipe = self._pipes.pop(pid)
        self._ready.unregister(pidfd)
        os.close(pidfd)
        with contextlib.suppress(OSError):  # nobody waits for it
            os.write(pipe, NUMBER.pack(os.waitstatus_to_exitcode(status)))
        os.close(pipe)


def _be(request: list[Any], descriptors: list[int]) -> None:
    command, environment, folder, _, numbers = request
    code = 1
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        moved = [_move(descriptor) for descriptor in descriptors]
        os.closerange(3, _OUT_OF_THE_WAY)
        for descriptor, number in zip((moved[0], moved[0], *moved[2:]), (1, 2, *numbers), strict=True):
            os.dup2(descriptor, number, inheritable=True)
        os.closerange(_OUT_OF_THE_WAY, _OUT_OF_THE_WAY + 2 * _MOST_DESCRIPTORS)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.argv = ["deadpool", *command]
        command_line()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _move(descriptor: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
    os.close(descriptor)
    return moved


if __name__ == "__main__":
    server = ForkServer(socket.socket(fileno=int(sys.argv[1])))
    gc.collect()
    gc.freeze()
    server.serve()
    os._exit(0)
