"""Bulk work gives way to training: which priority and which CPUs the threads have that hash and move copies.

Threads and not the agent's process, whose heartbeats must be in time and whose trainers must not take_over it. A thread
passes both on to those that it starts.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Courtesy:
    nice: int
    cpus: frozenset[int] = frozenset()  # none: wherever there is room

    def show(self) -> None:
        """Of the calling thread, from here on."""
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, self.nice)
        if self.cpus:
            os.sched_setaffinity(thread, self.cpus)
