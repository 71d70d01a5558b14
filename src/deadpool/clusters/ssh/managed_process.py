"""The processes on a host, and the news of the job that one of them knows.

`ManagedProcess`: a coordinator or an agent as a child of the daemon: its lines are passed on, and it ends with the
daemon.

`RunNews` news of the job from a coordinator's run folder: who leads, its events, how far the job is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from deadpool.clusters.ssh.upstream import LINE_LIMIT_BYTES, Upstream, encode
from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import DeadPoolError
from deadpool.host.child_processes import end_with_parent
from deadpool.protocol.messages import Answer, Ask
from deadpool.wire.control_link import connect

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


_PROGRESS_S = 2.0
_ANSWER_S = 2.0
_CHUNK_BYTES = 1 << 20
_FACTS = ("phase", "step", "watermark", "protected", "spares", "world_size")


class RunNews:
    def __init__(self, folder: RunDir, upstream: Upstream) -> None:
        self._folder, self._upstream = folder, upstream
        self._announced = b""
        self._position = 0  # in the file of events
        self._asked_at = 0.0
        self._asking: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Nothing is read while no launcher listens: the files wait."""
        if not self._upstream.is_connected:
            return
        self._look_for_leader()
        self._read_events()
        now = time.monotonic()
        if self._folder.is_known and now > self._asked_at + _PROGRESS_S and (not self._asking or self._asking.done()):
            self._asked_at = now
            self._asking = asyncio.get_running_loop().create_task(self._ask())

    def _look_for_leader(self) -> None:
        with contextlib.suppress(OSError):
            announced = (self._folder.path / "job.json").read_bytes()
            if announced != self._announced:
                self._announced = announced
                self._upstream.send(encode("announced", job=json.loads(announced)))

    def _read_events(self) -> None:
        with contextlib.suppress(OSError), self._folder.events.open("rb") as file:
            file.seek(self._position)
            whole, end, _ = file.read(_CHUNK_BYTES).rpartition(b"\n")
            if end:
                self._position += len(whole) + 1
                self._upstream.send(encode("events", text=whole.decode(errors="replace")))

    async def _ask(self) -> None:
        """Asks the coordinator that leads for the status; another one has nothing to tell."""
        with contextlib.suppress(DeadPoolError, OSError, TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                link = await connect(self._folder.coordinator(), self._folder.credentials(), patience_s=_ANSWER_S)
                try:
                    link.send(Ask(what="status", arguments={}))
                    async for message in link.messages():
                        if isinstance(message, Answer):
                            self._tell(message)
                            return
                finally:
                    link.abort()

    def _tell(self, answer: Answer) -> None:
        if not answer.error:
            told: dict[str, Any] = {name: answer.body.get(name) for name in _FACTS}
            self._upstream.send(encode("progress", **told))
