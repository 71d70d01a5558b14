"""Trainer processes of one node: started, their output told and kept, their end reported. All end with their agent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from deadpool.control.parent import end_with_parent

AGENT_VARIABLE = "DEADPOOL_AGENT"
TRAINER_VARIABLE = "DEADPOOL_TRAINER"
_LINE_LIMIT_BYTES = 1 << 20
_LAST_WORDS_S = 0.5


class TrainerProcesses:
    def __init__(
        self,
        *,
        script: list[str],
        door: str,
        logs: Path,
        label: Callable[[str], str | None],
        on_exit: Callable[[str, int, str], None],
    ) -> None:
        """`label` gives the prefix of a trainer's lines; None keeps them in the log only (a rehearsal)."""
        self._script, self._door, self._logs, self._label, self._on_exit = script, door, logs, label, on_exit
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, name: str) -> None:
        task = asyncio.get_running_loop().create_task(self._live(name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def signal(self, name: str, sig: int) -> bool:
        process = self._processes.get(name)
        if process is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(sig)
        return True

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._processes.items()}

    async def close(self) -> None:
        """SIGTERM has been given time by whoever asked for the end; what is left is killed and reaped."""
        for name in list(self._processes):
            self.signal(name, signal.SIGKILL)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _live(self, name: str) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "deadpool.trainer.main",
            *self._script,
            env=self._environment(name),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=_LINE_LIMIT_BYTES,
            preexec_fn=end_with_parent(),
        )
        self._processes[name] = process
        with (self._logs / f"{name}.log").open("a", encoding="utf-8") as log:
            telling = asyncio.get_running_loop().create_task(self._tell(name, process, log))
            code = await process.wait()
            self._processes.pop(name, None)
            self._on_exit(name, code, _reason(code))
            # Its own children may hold the pipe open: their words are waited for, but not for long.
            await asyncio.wait([telling], timeout=_LAST_WORDS_S)
            telling.cancel()

    async def _tell(self, name: str, process: asyncio.subprocess.Process, log: TextIO) -> None:
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:
                continue  # a line longer than the limit: its rest comes as lines of its own
            if not line:
                return
            text = line.decode(errors="replace").rstrip("\n")
            log.write(text + "\n")
            log.flush()
            label = self._label(name)
            if label is not None:
                print(f"{label} {text}", flush=True)

    def _environment(self, name: str) -> dict[str, str]:
        environment = {**os.environ, AGENT_VARIABLE: self._door, TRAINER_VARIABLE: name, "PYTHONUNBUFFERED": "1"}
        environment.setdefault("OMP_NUM_THREADS", "1")
        return environment


def _reason(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    return f"killed by {signal.Signals(-code).name}"
