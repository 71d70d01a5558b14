"""Trainer processes of one node: started, their output told and kept, their end reported. All end with their agent.

An exit is read from a pidfd, not from the end of the output, which a trainer's own children may hold open long after.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deadpool.control.parent import end_with_parent
from deadpool.protocol.topology import Address

AGENT_VARIABLE = "DEADPOOL_AGENT"
TRAINER_VARIABLE = "DEADPOOL_TRAINER"
HOST_VARIABLE = "DEADPOOL_HOST"
RENDEZVOUS_VARIABLE = "DEADPOOL_RENDEZVOUS"
_LINE_LIMIT_BYTES = 1 << 20
_LAST_WORDS_S = 0.5


@dataclass(slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    pidfd: int
    telling: asyncio.Task[None]


class TrainerProcesses:
    def __init__(
        self,
        *,
        script: list[str],
        door: str,
        host: str,
        logs: Path,
        label: Callable[[str], str | None],
        on_exit: Callable[[str, int, str], None],
    ) -> None:
        """`label` gives the prefix of a trainer's lines; None keeps them in the log only (a rehearsal)."""
        self._script, self._logs, self._label, self._on_exit = script, logs, label, on_exit
        self._variables = {AGENT_VARIABLE: door, HOST_VARIABLE: host, "PYTHONUNBUFFERED": "1"}
        self.rendezvous: Address | None = None  # of this node's store, once it listens
        self._running: dict[str, _Running] = {}
        self._last_words: set[asyncio.Task[None]] = set()

    def start(self, name: str) -> None:
        output, theirs = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "deadpool.trainer.main", *self._script],
            env=self._environment(name),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent(),
        )
        os.close(theirs)
        loop = asyncio.get_running_loop()
        running = _Running(process, os.pidfd_open(process.pid), loop.create_task(self._tell(name, output)))
        self._running[name] = running
        loop.add_reader(running.pidfd, self._exited, name)

    def signal(self, name: str, sig: int) -> None:
        running = self._running.get(name)
        if running is not None:
            with contextlib.suppress(ProcessLookupError):
                running.process.send_signal(sig)

    def pids(self) -> dict[str, int]:
        return {name: running.process.pid for name, running in self._running.items()}

    async def close(self) -> None:
        """What is left is killed and reaped, and what it said last is still told."""
        for name, running in list(self._running.items()):
            self.signal(name, signal.SIGKILL)
            running.process.wait()
            self._reap(name)
        await asyncio.gather(*self._last_words, return_exceptions=True)

    def _exited(self, name: str) -> None:
        code = self._running[name].process.wait()
        self._reap(name)
        self._on_exit(name, code, _reason(code))

    def _reap(self, name: str) -> None:
        running = self._running.pop(name)
        asyncio.get_running_loop().remove_reader(running.pidfd)
        os.close(running.pidfd)
        task = asyncio.get_running_loop().create_task(_hear_out(running.telling))
        self._last_words.add(task)
        task.add_done_callback(self._last_words.discard)

    async def _tell(self, name: str, descriptor: int) -> None:
        reader = asyncio.StreamReader(limit=_LINE_LIMIT_BYTES)
        loop = asyncio.get_running_loop()
        pipe = os.fdopen(descriptor, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            with (self._logs / f"{name}.log").open("a", encoding="utf-8") as log:
                while line := await reader.readline():
                    text = line.decode(errors="replace").rstrip("\n")
                    print(text, file=log, flush=True)
                    if (label := self._label(name)) is not None:
                        print(f"{label} {text}", flush=True)
        finally:
            transport.close()

    def _environment(self, name: str) -> dict[str, str]:
        environment = {**os.environ, **self._variables, TRAINER_VARIABLE: name}
        environment[RENDEZVOUS_VARIABLE] = str(self.rendezvous)
        environment.setdefault("OMP_NUM_THREADS", "1")
        return environment


async def _hear_out(telling: asyncio.Task[None]) -> None:
    await asyncio.wait([telling], timeout=_LAST_WORDS_S)
    telling.cancel()


def _reason(code: int) -> str:
    return f"exited with code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
