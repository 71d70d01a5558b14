"""Where trainer processes are born: one process that has imported torch and forks a trainer for whoever asks.

Importing torch and its distributed parts takes seconds of CPU time; a fork of a process that has done it takes
milliseconds, and shares that memory. Nothing but imports happens here: no thread, no CUDA, no random numbers drawn.

Requests and answers are single msgpack packets on the socket that came as the first argument:

    -> trainer [name, arguments, variables] + descriptor of its output     <- started [name, pid], exited [name, code]
    -> signal  [name, number]
    -> fork_server [process group, environment, folder] + descriptor of its socket: one more fork_server, for a node

    <- ready [], failed [reason]: once, when everything is imported or something cannot be

A fork_server ends with the other end of its socket, and its children with it. Packages that the user wants to be there in
every trainer from its first line on (`--preload`) come as further arguments.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import selectors
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import torch

from deadpool.child_processes import be_called, end_with_parent, join_network
from deadpool.trainer import main as trainer

PACKET_BYTES = 1 << 20


class ForkServer:
    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._ready = selectors.DefaultSelector()
        self._ready.register(link, selectors.EVENT_READ)
        self._names: dict[int, str] = {}  # of trainers, by process
        self._pidfds: dict[int, int] = {}  # of all children

    def serve(self) -> None:
        """Until nobody is there any more who could ask."""
        while True:
            for key, _ in self._ready.select():
                if key.fileobj is not self._link:
                    self._reap(key.data)
                elif not self._answer():
                    return

    def _answer(self) -> bool:
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._link, PACKET_BYTES, maxfds=1)
        except OSError:
            return False
        if not packet:
            return False
        match msgpack.unpackb(packet):
            case ["trainer", name, arguments, variables]:
                self._bear_trainer(name, descriptors[0], arguments, variables)
            case ["signal", name, number]:
                self._signal(name, number)
            case ["fork_server", group, environment, folder]:
                self._fork(lambda: _be_fork_server(descriptors[0], group, environment, folder), bound=False)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _bear_trainer(self, name: str, output: int, arguments: list[str], variables: dict[str, str]) -> None:
        pid = self._fork(lambda: _be_trainer(name, output, arguments, variables))
        self._names[pid] = name
        self._say("started", name, pid)

    def _signal(self, name: str, number: int) -> None:
        """From here, where a process that has ended keeps its number until it is reaped."""
        for pid, known in self._names.items():
            if known == name:
                os.kill(pid, number)

    def _reap(self, pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        self._ready.unregister(self._pidfds[pid])
        os.close(self._pidfds.pop(pid))
        if pid in self._names:
            self._say("exited", self._names.pop(pid), os.waitstatus_to_exitcode(status))

    def _say(self, *answer: Any) -> None:
        with contextlib.suppress(OSError):  # nobody is there: serve() will see it
            self._link.send(msgpack.packb(answer))

    def _fork(self, life: Callable[[], None], *, bound: bool = True) -> int:
        """`bound`: the child ends with this process, however it ends."""
        arm = end_with_parent() if bound else (lambda: None)
        pid = os.fork()
        if pid:
            self._pidfds[pid] = os.pidfd_open(pid)
            self._ready.register(self._pidfds[pid], selectors.EVENT_READ, pid)
            return pid
        try:
            self._ready.close()
            self._link.close()
            for pidfd in self._pidfds.values():
                os.close(pidfd)
            arm()
            life()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)  # a life that is over says so itself


def _reset_signals() -> None:
    """As torchrun's ranks find them, whatever was ignored where the job was started: `nohup deadpool run ... &`."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _be_trainer(name: str, output: int, arguments: list[str], variables: dict[str, str]) -> None:
    be_called(name)
    _reset_signals()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.update(variables)
    _seed_generators()
    sys.argv = ["deadpool-trainer", *arguments]
    trainer.main()


def _seed_generators() -> None:
    """As different from its siblings as a process of its own would be. Not those of GPUs: they begin alike in all
    processes, and nobody has touched them."""
    random.seed()
    np.random.seed()
    torch.default_generator.seed()


def _be_fork_server(descriptor: int, group: int, environment: dict[str, str], folder: str) -> None:
    """For a node: part of its process group and of its network, and ended by the end of its agent alone."""
    with contextlib.suppress(OSError):  # the node was killed already: its socket says so
        os.setpgid(0, group)
        join_network(Path(f"/proc/{group}/ns/net"))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    ForkServer(socket.socket(fileno=descriptor)).serve()


def main() -> None:
    link = socket.socket(fileno=int(sys.argv[1]))
    reason = _preload(sys.argv[2:])
    with contextlib.suppress(OSError):  # nobody is there: serve() will see it
        link.send(msgpack.packb(["ready"] if reason is None else ["failed", reason]))
    if reason is None:
        gc.collect()
        gc.freeze()  # what is imported stays: no clean-up of a child need look at it, and its pages stay shared
        ForkServer(link).serve()
    os._exit(0 if reason is None else 1)


def _preload(packages: list[str]) -> str | None:
    """Why not, if one cannot be imported."""
    for package in packages:
        try:
            importlib.import_module(package)
        except BaseException as error:  # whatever a package does while it is imported
            traceback.print_exc()
            return f"preload={package!r} cannot be imported: {type(error).__name__}: {error}"
        if threading.active_count() > 1 or torch.cuda.is_initialized():
            return f"preload={package!r} starts threads or CUDA when it is imported: forked trainers would lack them"
    return None


if __name__ == "__main__":
    main()
