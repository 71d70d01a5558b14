"""Priority and CPUs of the threads that hash and move copies, so that this work gives way to training.

Both are set for threads and not for the agent's process: its heartbeats must be in time, and its trainers would start
with the same priority. A thread passes both on to the threads that it starts.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThreadPriority:
    nice: int
    cpus: frozenset[int] = frozenset()  # empty: any CPU

    def apply(self) -> None:
        """To the client thread, from here on."""
        thread = threading.get_native_id()
        # An engine may have started the agent with less priority already, and an ordinary user cannot take that back.
        own = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, max(own, self.nice))
        if self.cpus:
            with contextlib.suppress(OSError):  # they were taken away since: any other will do
                os.sched_setaffinity(thread, self.cpus)
