"""Asks the coordinator and reads the event log, in a thread: a coordinator that is slow does not freeze the keys."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deadpool.errors import DeadPoolError
from deadpool.events.story import Recovery, recoveries
from deadpool.views.metrics.event_tail import EventTail
from deadpool.views.metrics.job_fold import JobFold

_EVERY_S = 1.0
_SHARE = 20
"""The pause between two questions, as a multiple of the time that an answer took: watching a large job must not be work
for its coordinator.
"""
_NOT_TOLD = {"progress", "step_times", "capture_missed"}

_REMEMBERED = 60_000
"""Events: more than a recovery of some thousand ranks has."""

Ask = Callable[..., dict[str, Any]]


class Sources:
    def __init__(self, ask: Ask, events: Path) -> None:
        """`ask` takes a request and its arguments; it may raise DeadPoolError."""
        self._ask, self._tail = ask, EventTail(events)
        self._records: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="top", daemon=True)
        self._status: dict[str, Any] | None = None
        self.failure, self.message = "", ""
        self.fold, self.story = JobFold(), list[str]()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(5.0)

    def take_status(self) -> dict[str, Any] | None:
        """None: there is no newer one."""
        with self._lock:
            status, self._status = self._status, None
            return status

    def drain(self, node: str) -> None:
        threading.Thread(target=self._drain, args=(node,), daemon=True).start()

    def _drain(self, node: str) -> None:
        try:
            answer = self._ask("drain", node=node)
            to = f"; its ranks go to {answer['successor']}" if answer.get("ranks") else ""
            self.message = f"node {node} leaves{to}"
        except DeadPoolError as error:
            self.message = f"not drained: {error}"

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            self._read_events()
            self._read_status()
            if self._closed.wait(max(_EVERY_S, _SHARE * (time.monotonic() - began))):
                return

    def _read_status(self) -> None:
        try:
            status = self._ask("status")
        except DeadPoolError as error:
            self.failure = str(error)
            return
        with self._lock:
            self._status, self.failure = status, ""

    def _read_events(self) -> None:
        """Where the log is on another machine, what is made of it is left out."""
        fresh = list(self._tail.read())
        for record in fresh:
            self.fold.add(record)
        self._records += [record for record in fresh if record["what"] not in _NOT_TOLD]
        del self._records[:-_REMEMBERED]
        if any(record["what"] in ("go", "resumed", "fault") for record in fresh):
            told = recoveries(sorted(self._records, key=lambda record: float(record["t"])))
            self.story = story_lines(told[-1]) if told else []


def story_lines(recovery: Recovery) -> list[str]:
    """The newest recovery as `deadpool show story` tells it, shorter."""
    total = sum(recovery.phases_s.values()) or 1.0
    lines = [f"{recovery.cause}: {recovery.fault['reason']}, ranks {recovery.fault['ranks']}"]
    for name, seconds in recovery.phases_s.items():
        lines.append(f"  {name:8} {1e3 * seconds:9.1f} ms  {'#' * max(1, round(30 * seconds / total))}")
    lines.append(f"  resumed at step {recovery.resume_step}, {recovery.lost_steps} completed steps redone")
    for record in recovery.records:
        place = " ".join(f"{name}={record[name]}" for name in ("node", "rank", "trainer") if name in record)
        lines.append(f"  +{1e3 * (float(record['t']) - recovery.began):8.1f} ms {record['what']:14} {place}")
    return lines
