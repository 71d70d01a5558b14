"""Whether a job on this machine can still begin: a coordinator waits without a limit for the nodes to begin with.

On a cluster they may come late. Here the launcher has started all of them, and nobody brings another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

from deadpool.control.coordinator.job_rpc import ask_status
from deadpool.control.launch.run_dir import RunDir
from deadpool.errors import ConfigError
from deadpool.events.event import read_events
from deadpool.protocol.coordinator.job import Phase

_UNWRITTEN_S = 10.0
"""An event may be on its way to a slow disk for so long."""
_ASK_S, _ANSWER_S = 1.0, 5.0


class Forming:
    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir, self._started_at = run_dir, time.time()
        self._ask_at: float | None = None  # when the coordinator is asked next
        self._is_over = False  # as far as it was asked for

    def is_hopeless(self, gone: Sequence[str]) -> bool:
        """`gone`: nodes that the job was to begin with, and whose agents have ended."""
        if self._is_over or not gone:
            return False
        if self._ask_at is None:
            self._ask_at = time.monotonic() + _UNWRITTEN_S
        self._is_over = any(event["what"] == "planned" for event in self._events())
        if self._is_over or time.monotonic() <= self._ask_at:
            return False
        phase = self._phase()
        self._ask_at, self._is_over = time.monotonic() + _ASK_S, phase not in (None, Phase.FORMING.value)
        return phase == Phase.FORMING.value

    def _phase(self) -> str | None:
        """Asks the coordinator for the phase: a disk that has been full since the job began has no events of it."""
        with contextlib.suppress(ConfigError, OSError):
            return str(asyncio.run(asyncio.wait_for(ask_status(self._run_dir), _ANSWER_S))["phase"])
        return None

    def _events(self) -> list[dict[str, Any]]:
        """Returns the events of this job: one before it may have used the folder. A disk that is gone for a while has
        none.
        """
        with contextlib.suppress(OSError):
            return [event for event in read_events(self._run_dir.events) if event.get("t", 0.0) >= self._started_at]
        return []
