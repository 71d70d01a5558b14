"""News of the job from a coordinator's run folder: who leads, its events, how far the job is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

from deadpool.clusters.ssh.lines import encode
from deadpool.clusters.ssh.upstream import Upstream
from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import DeadPoolError
from deadpool.protocol.messages import Answer, Ask
from deadpool.wire.control_link import connect

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
