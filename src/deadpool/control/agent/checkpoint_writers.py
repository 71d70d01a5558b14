"""The processes that write an agent's part of durable checkpoints, one for each write. The agent only waits for them.

A store that hangs hangs its process and the thread here that waits for it, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

from deadpool.durable.tasks import FinishTask, PartTask, Task, encode_task
from deadpool.host.child_processes import end_with_parent
from deadpool.protocol.inputs import CheckpointFinished, PartWritten

Result = PartWritten | CheckpointFinished


class CheckpointWriters:
    def __init__(self, deliver: Callable[[Result], None]) -> None:
        """`deliver` takes results from any thread."""
        self._deliver = deliver
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: set[str] = set()  # checkpoints that were given up
        self._closed = False

    def start(self, task: Task, then: Callable[[], None] = lambda: None) -> None:
        """`then` is called when the process has ended, in another thread."""
        threading.Thread(target=self._run, args=(task, then), name="checkpoint", daemon=True).start()

    def end(self, name: str) -> None:
        with self._lock:
            self._ended.add(name)
            process = self._running.get(name)
        if process is not None:
            _kill(process)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            running = list(self._running.values())
        for process in running:
            _kill(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2.0)  # a process that hangs in the kernel is left to it

    def _run(self, task: Task, then: Callable[[], None]) -> None:
        written, failure = 0, ""
        try:
            process = self._spawn(task)
            if process is not None:
                written, failure = self._await(process, task)
        except (OSError, ValueError) as error:
            failure = f"the writer did not start: {error}"
        finally:
            with self._lock:
                self._running.pop(task.name, None)
            then()
        with self._lock:
            if self._closed or task.name in self._ended:
                return
        kind = PartWritten if isinstance(task, PartTask) else CheckpointFinished
        self._deliver(kind(name=task.name, bytes_written=written, failure=failure))

    def _spawn(self, task: Task) -> subprocess.Popen[bytes] | None:
        """Under the lock, so that whoever ends a write finds its process."""
        descriptors = tuple(staged.fd for staged in task.copies) if isinstance(task, PartTask) else ()
        with self._lock:
            if self._closed or task.name in self._ended:
                return None
            self._running[task.name] = process = subprocess.Popen(
                [sys.executable, "-m", "deadpool.durable.writer"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                pass_fds=descriptors,
                preexec_fn=end_with_parent(signal.SIGKILL),
            )
            return process

    def _await(self, process: subprocess.Popen[bytes], task: PartTask | FinishTask) -> tuple[int, str]:
        output, _ = process.communicate(encode_task(task))
        try:
            answer = json.loads(output.splitlines()[-1])
            return int(answer["bytes"]), str(answer["failure"])
        except (ValueError, IndexError, KeyError, TypeError):
            return 0, f"the writer ended with code {process.returncode} and no answer"


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
