"""Forks trainer processes: a process that has imported torch forks a trainer for each request of an agent.

Only imports happen here: the process starts no thread, does not use CUDA and draws no random numbers.

Requests and answers are single msgpack packets on the socket that came as the first argument:

    -> trainer [name, arguments, variables] + descriptor of its output     <- started [name, pid], exited [name, code]
    -> signal  [name, number]
    -> import  [modules]: trainers that are started later find them imported
    -> fork_server [process group, environment, folder] + descriptor of its socket: one more fork server, for a node

    <- ready [], failed [reason]: once, when everything is imported or something cannot be

A fork server ends when the other end of its socket is closed, and its children end with it. The packages that every
trainer is to find imported (`--preload`) come as further arguments.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import random
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import torch

from deadpool.host.child_processes import ForkLoop, be_called, join_network
from deadpool.trainer.process import torch_check

PACKET_BYTES = 1 << 20


class TrainerForkServer:
    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._loop = ForkLoop(link, self._on_request, self._on_exit)
        self._names: dict[int, str] = {}  # of trainers, by process
        self._trials: dict[int, list[str]] = {}  # modules, by the process that tries to import them

    def serve(self) -> None:
        """Returns when the other end of the socket is closed."""
        self._loop.serve()

    def _on_request(self) -> bool:
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._link, PACKET_BYTES, maxfds=1)
        except OSError:
            return False
        if not packet:
            return False
        match msgpack.unpackb(packet):
            case ["trainer", name, arguments, variables]:
                self._start_trainer(name, descriptors[0], arguments, variables)
            case ["signal", name, number]:
                self._signal(name, number)
            case ["import", modules]:
                self._trials[self._loop.fork(lambda: _try_imports(modules))] = modules
            case ["fork_server", group, environment, folder]:
                self._loop.fork(
                    lambda: _run_fork_server(self._link, descriptors[0], group, environment, folder), end_signal=None
                )
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _start_trainer(self, name: str, output: int, arguments: list[str], variables: dict[str, str]) -> None:
        pid = self._loop.fork(lambda: _run_trainer(self._link, name, output, arguments, variables))
        self._names[pid] = name
        self._answer("started", name, pid)

    def _signal(self, name: str, number: int) -> None:
        """Sent from here, because the process id of a child that has ended stays valid until it is reaped here."""
        for pid, known in self._names.items():
            if known == name:
                os.kill(pid, number)

    def _on_exit(self, pid: int, code: int) -> None:
        if pid in self._names:
            self._answer("exited", self._names.pop(pid), code)
        elif code == 0:
            _import_for_good(self._trials.pop(pid, []))

    def _answer(self, *answer: Any) -> None:
        with contextlib.suppress(OSError):  # the other end is closed: serve() will notice
            self._link.send(msgpack.packb(answer))


def _reset_signals() -> None:
    """Gives a trainer the signal handlers of torchrun's ranks, also in a job started by `nohup deadpool run ... &`."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTTOU):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _run_trainer(link: socket.socket, name: str, output: int, arguments: list[str], variables: dict[str, str]) -> None:
    link.close()
    be_called(name)
    _reset_signals()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.update(variables)
    _seed_generators()
    sys.argv = ["deadpool-trainer", *arguments]
    from deadpool.trainer.process import main as trainer  # imported before the fork

    trainer.main()


def _seed_generators() -> None:
    """Seeds the generators differently in each trainer, as in processes that were not forked. Those of GPUs are left:
    they begin alike in all processes, and no process has used them before the fork."""
    random.seed()
    np.random.seed()
    torch.default_generator.seed()


def _run_fork_server(
    link: socket.socket, descriptor: int, group: int, environment: dict[str, str], folder: str
) -> None:
    """The fork server of a node: it joins the node's process group and network, and ends with the node's agent."""
    link.close()
    with contextlib.suppress(OSError):  # the node was killed already: its socket is closed
        os.setpgid(0, group)
        join_network(Path(f"/proc/{group}/ns/net"))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    own = socket.socket(fileno=descriptor)
    if (reason := _import_trainer()) is not None:
        own.send(msgpack.packb(["failed", reason]))
    TrainerForkServer(own).serve()


def main() -> None:
    link = socket.socket(fileno=int(sys.argv[1]))
    broken = _import_trainer()
    reason = _preload(sys.argv[2:]) if broken is None else None
    if reason is None and broken is None:
        torch_check.examine_once()  # trainers inherit the answer
    with contextlib.suppress(OSError):  # the other end is closed: serve() will notice
        said = broken or reason
        link.send(msgpack.packb(["ready"] if said is None else ["failed", said]))
    if reason is None:
        gc.collect()
        gc.freeze()  # no collection in a child need visit imported modules, so their pages stay shared
        TrainerForkServer(link).serve()
    os._exit(0 if reason is None else 1)


def _import_trainer() -> str | None:
    """The reason why this torch cannot be used at all, if there is one. A fork server says it to each node that asks
    for trainers, so that the job ends with a sentence."""
    try:
        importlib.import_module("deadpool.trainer.process.main")
    except (ImportError, AttributeError) as error:
        return torch_check.import_problem(error)
    return None


def _try_imports(modules: list[str]) -> None:
    """What a module leaves behind cannot be taken back, so a child tries it first. A child that ends well proves that
    there are neither threads nor a device in use afterwards."""
    for module in modules:
        importlib.import_module(module)
    if threading.active_count() > 1 or torch.cuda.is_initialized():
        raise SystemExit(1)


def _import_for_good(modules: list[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    if modules:
        gc.collect()
        gc.freeze()


def _is_absent(package: str) -> bool:
    """Tells whether a package is absent without importing anything: a package in another one is judged by the outer
    one.
    """
    return not package or importlib.util.find_spec(package.partition(".")[0] or "-") is None


def _preload(packages: list[str]) -> str | None:
    """The reason why a package cannot be preloaded, if there is one."""
    for package in packages:
        try:
            importlib.import_module(package)
        except BaseException as error:  # a package may raise anything while it is imported
            if not (isinstance(error, ImportError | ValueError) and _is_absent(package)):
                traceback.print_exc()  # of the package's own code
            return f"preload={package!r} cannot be imported: {type(error).__name__}: {error}"
        if threading.active_count() > 1 or torch.cuda.is_initialized():
            return f"preload={package!r} starts threads or CUDA when it is imported: forked trainers would lack them"
    return None


if __name__ == "__main__":
    main()
