"""Keeps the view of one job current while somebody looks at it, and wakes those who look when a part has changed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from deadpool.views.dashboard.run_files import RunFiles
from deadpool.views.dashboard.view import view

Ask = Callable[[], Awaitable[dict[str, Any]]]
"""Asks the coordinator for its status. Raises where none answers."""

_TICK_S = 0.4
_REST = 3.0  # times as long as a view takes, this process rests: at thousands of nodes it takes long
_MOST_REST_S = 2.0
_WORK_SHARE = 0.2  # of the time, at most, a question is open: at thousands of nodes an answer is work
_BYTES_PER_S = 100_000  # of one part; a large part is sent less often
_SILENT_S = 3.0
_IDLE_S = 15.0  # a stream says something so often, so that a tunnel does not close it


class Feed:
    def __init__(self, files: RunFiles, ask: Ask | None) -> None:
        self._files, self._ask = files, ask
        self._lock = asyncio.Lock()
        self._refreshed = asyncio.Condition()
        self._parts: dict[str, tuple[int, str]] = {}  # number of the change, JSON
        self._number = 0
        self._readers = 0
        self._task: asyncio.Task[None] | None = None
        self._status: dict[str, Any] | None = None
        self._answered_at: float | None = None

    @property
    def readers(self) -> int:
        return self._readers

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def fault(self, cause: str) -> dict[str, Any] | None:
        async with self._lock:
            return await asyncio.to_thread(self._files.fault, cause)

    async def changes(self) -> AsyncIterator[tuple[str, str]]:
        """Yields parts as they change, by name; ("", "") when nothing has changed for a while. All parts come first."""
        self._readers += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._follow())
        seen: dict[str, tuple[int, float]] = {}  # number and time of what this reader was sent
        last = time.monotonic()
        try:
            while True:
                due = self._due(seen)
                for name in due:
                    number, text = self._parts[name]
                    seen[name] = (number, time.monotonic())
                    yield name, text
                if due:
                    last = time.monotonic()
                elif time.monotonic() - last > _IDLE_S:
                    last = time.monotonic()
                    yield "", ""
                async with self._refreshed:
                    await self._refreshed.wait()
        finally:
            self._readers -= 1

    def _due(self, seen: dict[str, tuple[int, float]]) -> list[str]:
        now = time.monotonic()
        due = []
        for name, (number, text) in self._parts.items():
            known, at = seen.get(name, (-1, 0.0))
            if number != known and (known < 0 or now - at >= len(text) / _BYTES_PER_S):
                due.append(name)
        return due

    async def _follow(self) -> None:
        """Runs while there is a reader: a page that nobody looks at costs the coordinator nothing."""
        asking = asyncio.get_running_loop().create_task(self._keep_asking())
        try:
            while self._readers:
                began = time.monotonic()
                await self._refresh()
                await asyncio.sleep(min(_MOST_REST_S, max(_TICK_S, _REST * (time.monotonic() - began))))
        finally:
            asking.cancel()
            self._task, self._status, self._answered_at = None, None, None

    async def _refresh(self) -> None:
        async with self._lock:
            parts = await asyncio.to_thread(self._build, time.time())
        changed = {name: text for name, text in parts.items() if self._parts.get(name, (0, ""))[1] != text}
        self._number += 1
        self._parts.update({name: (self._number, text) for name, text in changed.items()})
        async with self._refreshed:
            self._refreshed.notify_all()

    def _build(self, now: float) -> dict[str, str]:
        """A job that has ended is looked at anew only if its log has grown."""
        has_grown, history = self._files.refresh(), self._files.history
        if history.ended is not None and not has_grown and self._parts:
            return {}
        status = self._status if history.ended is None else None
        answers = self._ask is None or status is not None or history.ended is not None
        shown = view(history, self._files.losses, self._files.job(), status, now=now, answers=answers)
        return {name: json.dumps(part, separators=(",", ":")) for name, part in shown.items()}

    async def _keep_asking(self) -> None:
        """A coordinator that has moved is found again: each question looks into the run folder for its address."""
        while self._ask is not None:
            began = time.monotonic()
            try:
                async with asyncio.timeout(2 * _SILENT_S):
                    self._status = await self._ask()
                self._answered_at = time.monotonic()
            except Exception:  # whatever the reason: the folder tells the rest, and the page says that none answers
                if self._answered_at is None or time.monotonic() - self._answered_at > _SILENT_S:
                    self._status = None
            await asyncio.sleep(max(1.0, (time.monotonic() - began) / _WORK_SHARE))
