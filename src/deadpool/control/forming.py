"""Whether a job on this machine can still begin: a coordinator waits without a limit for the nodes to begin with.

On a cluster they may come late. Here the launcher has started all of them, and nobody brings another one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from deadpool.control.job_rpc import ask
from deadpool.control.run_dir import RunDir
from deadpool.errors import ConfigError
from deadpool.events import read_events
from deadpool.protocol.coordinator.job import Phase

_UNWRITTEN_S = 10.0
"""An event may be on its way to a slow disk for so long."""


class Forming:
    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir, self._started_at = run_dir, time.time()
        self._first_gone_at: float | None = None
        self._is_over = False  # as far as it was asked for

    def is_hopeless(self, gone: Sequence[str]) -> bool:
        """`gone`: nodes that the job was to begin with, and whose agents have ended."""
        if self._is_over or not gone:
            return False
        if self._first_gone_at is None:
            self._first_gone_at = time.monotonic()
        self._is_over = any(event["what"] == "planned" for event in self._events())
        if self._is_over or time.monotonic() <= self._first_gone_at + _UNWRITTEN_S:
            return False
        return self._phase() == Phase.FORMING.value

    def _phase(self) -> str | None:
        """As the coordinator says: a disk that has been full since the job began has no events of it."""
        with contextlib.suppress(ConfigError, OSError):
            return str(ask(self._run_dir, "status")["phase"])
        return None

    def _events(self) -> list[dict[str, Any]]:
        """Those of this job: one before it may have used the folder. A disk that is gone for a while has none."""
        with contextlib.suppress(OSError):
            return [event for event in read_events(self._run_dir.events) if event.get("t", 0.0) >= self._started_at]
        return []
