"""The client of a fork server, the process that has imported torch and forks trainers (trainer/process/fork_server.py).

On a cluster each agent starts a fork server of its own. Where one machine plays several nodes, the launcher starts one
fork server, which forks another one per node: torch is imported once, and not once per trainer.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack

from deadpool.control.launch.command_forks import CommandForks
from deadpool.errors import ConfigError
from deadpool.host.child_processes import end_with_parent, interrupts_held

_PACKET_BYTES = 1 << 20


def start_fork_server(
    environment: dict[str, str], preload: Sequence[str] = ()
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Starts a fork server as a child of this process. Returns our end of its socket, and the process.

    It needs seconds to come up. Requests that are sent before that wait in the socket. An interrupt of the terminal is
    not for it: it would print a traceback, while whoever started it ends it in order.
    """
    ours, theirs = socket_pair()
    tie_to_parent = end_with_parent()

    def begin() -> None:
        tie_to_parent()
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    with theirs, interrupts_held():
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "deadpool.trainer.process.fork_server", str(theirs.fileno()), *preload],
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            preexec_fn=begin,
        )
    return ours, process


def socket_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def request(link: socket.socket, *words: object, descriptor: int | None = None) -> None:
    """If the fork server is gone, the request is dropped: the socket's end is seen elsewhere."""
    with contextlib.suppress(OSError):
        socket.send_fds(link, [bytes(msgpack.packb(words))], [] if descriptor is None else [descriptor])


def answer(link: socket.socket, *, wait: bool = False) -> list[Any] | None:
    """Reads one answer from a readable socket, or waits for it. Returns None if the fork server is gone."""
    try:
        packet = link.recv(_PACKET_BYTES, 0 if wait else socket.MSG_DONTWAIT)
    except OSError:
        return None
    return list(msgpack.unpackb(packet)) if packet else None


class SharedForkServer:
    """One fork server for all nodes that this machine plays, in one job or several. With `forks_commands` it forks
    their agents and coordinators too."""

    def __init__(self, preload: Sequence[str] = (), *, forks_commands: bool = False) -> None:
        """Raises ConfigError if a package of `preload` cannot be imported; only where there are some, the import is
        awaited."""
        self.commands = CommandForks() if forks_commands else None
        environment = dict(os.environ)
        environment.setdefault("OMP_NUM_THREADS", "1")
        self._link, self._process = start_fork_server(environment, preload)
        if preload:
            self._await_imports(preload)

    def _await_imports(self, preload: Sequence[str]) -> None:
        match answer(self._link, wait=True):
            case ["ready"]:
                return
            case ["failed", reason]:
                problem = f"{reason}; give packages that this python can import"
            case _:
                problem = f"preload={','.join(preload)!r} cannot be used: the process that imported it ended"
        self.close()
        raise ConfigError(problem)

    def fork_node_server(self, link: socket.socket, group: int, environment: dict[str, str]) -> None:
        """Forks a node's own fork server into this process group. `link` is its end of a socket pair."""
        request(self._link, "fork_server", group, environment, str(Path.cwd()), descriptor=link.fileno())

    def close(self) -> None:
        self._link.close()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        if self.commands is not None:
            self.commands.close()
