"""The actor that owns the agent of one Ray node. This module does not need Ray: the driver makes an actor of the class.

Ray calls the methods of an actor on its main thread, which lives as long as the process: the agent ends with it.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from deadpool.config.environment import SECRET_FILE_VARIABLE, SECRET_VARIABLE
from deadpool.host.child_processes import end_with_parent

_END_S = 3.0


class AgentActor:
    """A fresh process of it, on this node or another, has started nothing: the driver then tells it to start again."""

    def __init__(self) -> None:
        self._incarnation = secrets.token_hex(4)
        self._process: subprocess.Popen[bytes] | None = None
        self._secret: int | None = None

    def describe(self) -> dict[str, Any]:
        return {
            "incarnation": self._incarnation,
            "host": socket.gethostname(),
            "started": self._process is not None,
            "code": self._process.poll() if self._process is not None else None,
        }

    def start(self, words: list[str], secret: str, folder: str, environment: dict[str, str]) -> None:
        """The words of `deadpool agent`. The folder is used where it is there; a runtime environment has its own."""
        if self._secret is None:
            self._secret = _in_memory(secret)
        variables = {**os.environ, **environment, SECRET_FILE_VARIABLE: f"/proc/{os.getpid()}/fd/{self._secret}"}
        variables.pop(SECRET_VARIABLE, None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "deadpool.cli.main", *words],
            cwd=folder if Path(folder).is_dir() else None,
            env=variables,
            stdin=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=end_with_parent(),
        )

    def end(self) -> None:
        """Ray ends the actor afterwards. An agent that does not go by itself is killed, with all of its group."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _in_memory(secret: str) -> int:
    """A file without a name, which only processes of this user can open, and which is gone with this process."""
    descriptor = os.memfd_create("deadpool-secret", os.MFD_CLOEXEC)
    os.fchmod(descriptor, 0o600)
    os.write(descriptor, secret.encode())
    return descriptor
