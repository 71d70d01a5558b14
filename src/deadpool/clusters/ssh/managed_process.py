"""A coordinator or an agent as a child of the daemon: its lines are passed on, and it ends with the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence

from deadpool.clusters.ssh.lines import LINE_LIMIT_BYTES
from deadpool.host.child_processes import end_with_parent

_LAST_LINES_S = 0.5


class ManagedProcess:
    def __init__(
        self, what: str, words: list[str], variables: dict[str, str], on_line: Callable[[str, str], None]
    ) -> None:
        self.what, self._words, self._variables, self._on_line = what, words, variables, on_line
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.was_reported = False

    async def start(self, end_signal: signal.Signals, descriptors: Sequence[int] = ()) -> None:
        """In a group of its own, which is killed as a whole. It gets the descriptors under their numbers."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "deadpool.cli.main",
            *self._words,
            env=self._variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            process_group=0,
            pass_fds=descriptors,
            preexec_fn=end_with_parent(end_signal),
            limit=LINE_LIMIT_BYTES,
        )
        self._reading = asyncio.get_running_loop().create_task(self._read(self._process))

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def code(self) -> int | None:
        return self._process.returncode if self._process is not None else None

    @property
    def has_ended(self) -> bool:
        return self.code is not None

    async def end(self, sig: signal.Signals, patience_s: float) -> None:
        """Asks first; then the whole group is killed in any case: a trainer may have left children in it."""
        assert self._process is not None and self._reading is not None
        if not self.has_ended:
            self._process.send_signal(sig)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_LINES_S):
                await self._reading

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Reads the output also while nobody listens: a full pipe would stop the training."""
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:
                continue  # a line beyond all bounds; what follows is read on
            if not line:
                return
            self._on_line(self.what, line.decode(errors="replace").rstrip("\n"))
