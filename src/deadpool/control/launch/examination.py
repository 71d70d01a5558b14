"""Runs `deadpool doctor` as a child of this process and reads what it found: in an agent when its coordinator asks.

A process of its own: it has this one's limits, cgroup and environment, so it finds what this one suffers from, and
whatever hangs there does not hang here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from deadpool.control.agent.coordinator_client import unreachable
from deadpool.protocol.messages import Examine, Examined

_AGENT_S = 5.0
_MORE_S = 10.0  # for Python to start on a busy machine


def run_doctor(
    words: Sequence[str], *, timeout_s: float, started: Callable[[subprocess.Popen[str]], None] | None = None
) -> dict[str, Any]:
    """What it prints as JSON; {"error": why} where it does not end or prints something else. `timeout_s` is what the
    checks themselves may take. `started` gets the child, for a caller that may have to end it."""
    command = [sys.executable, "-m", "deadpool.cli.main", "doctor", "--json", f"--timeout-s={timeout_s:g}", *words]
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    if started is not None:
        started(child)
    try:
        printed, complaint = child.communicate(timeout=timeout_s + _MORE_S)
        told = json.loads(printed)
        return told if isinstance(told, dict) else {"error": "it printed no object"}
    except subprocess.TimeoutExpired:
        return {"error": f"it did not end within {timeout_s + _MORE_S:g} s"}
    except ValueError:
        return {"error": complaint.strip()[-500:] or f"it ended with code {child.returncode}"}
    finally:
        _end(child)


class NodeExamination:
    """The agent's side: one examination of its node at a time, beside its work."""

    def __init__(self, words: Sequence[str], *, send: Callable[[Examined], None]) -> None:
        self._words, self._send = tuple(words), send
        self._running: asyncio.Task[None] | None = None
        self._child: subprocess.Popen[str] | None = None
        self._closing = False

    def begin(self, order: Examine) -> None:
        if self._running is not None and not self._running.done():
            busy = {"error": "its agent is still busy with another examination", "arrived": time.time()}
            self._send(Examined(number=order.number, body={**busy, "left": time.time()}))
            return
        self._running = asyncio.get_running_loop().create_task(self._examine(order))

    async def close(self) -> None:
        """The thread that waits for the child ends with it."""
        self._closing = True
        if self._child is not None:
            _kill(self._child)
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)

    def _on_started(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        if self._closing:
            _kill(child)

    async def _examine(self, order: Examine) -> None:
        body: dict[str, Any] = {"arrived": time.time()}
        told, missing = await asyncio.gather(
            asyncio.to_thread(run_doctor, self._words, timeout_s=_AGENT_S, started=self._on_started),
            asyncio.to_thread(unreachable, order.peers),
            return_exceptions=True,
        )
        for problem in (told, missing):
            if isinstance(problem, BaseException):
                body["error"] = str(problem)
        if isinstance(told, dict):
            body["error" if "error" in told else "report"] = told["error"] if "error" in told else told["nodes"][0]
        if isinstance(missing, tuple):
            body["unreachable"] = list(missing)
        self._send(Examined(number=order.number, body={**body, "left": time.time()}))


def _end(child: subprocess.Popen[str]) -> None:
    _kill(child)
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


def _kill(child: subprocess.Popen[str]) -> None:
    """Kills the child with all that it started. One that the kernel does not let go is left behind."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1.0)
