"""Runs of scripts without DeadPool.

`SharedProcesses`: the processes that start all scripts of a run of trials. Each has imported once what it forks.

`ReferenceRuns` runs of scripts without DeadPool: by torch's launcher in a process that has torch, or by the real
torchrun.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.host.child_processes import end_with_parent, interrupts_held

_POLL_S = 0.5


class ReferenceRuns:
    """The process that forks torch's launchers. Several threads may use it at once."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._ids = itertools.count()
        self._asking = threading.Lock()
        self._answers: dict[int, queue.Queue[int]] = {}
        with interrupts_held():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "deadpool_lab.strangers.torchrun"],
                env=_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=end_with_parent(),
            )
        self._reader = threading.Thread(target=self._read, name="deadpool-references", daemon=True)
        self._reader.start()

    def run(self, script: Path, arguments: list[str], world_size: int, console: Path, timeout_s: float) -> int | None:
        """Runs it to its end. Returns the exit code, or None if it did not end in time: then its stacks are on the
        console."""
        number = next(self._ids)
        answer = self._answers[number] = queue.Queue()
        request = {"id": number, "script": str(script), "arguments": arguments, "world_size": world_size}
        self._ask({**request, "console": str(console), "folder": str(script.parent)})
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not self._stopping.is_set():
            with contextlib.suppress(queue.Empty):
                return answer.get(timeout=_POLL_S)
        self._ask({"stop": number})
        answer.get(timeout=timeout_s)
        return None

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()

    def _ask(self, request: dict[str, object]) -> None:
        assert self._process.stdin is not None
        with self._asking:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            self._answers.pop(answer["id"]).put(answer["code"])


def run_torchrun(script: Path, arguments: list[str], world_size: int, console: Path, timeout_s: float) -> int | None:
    """The real command, with all its imports."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
    command += ["-m", "deadpool_lab.workload.plain_torch"]
    with console.open("ab") as output, interrupts_held():
        process = subprocess.Popen(
            [*command, str(script), *arguments],
            env=_environment(),
            cwd=script.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
            preexec_fn=end_with_parent(),
        )
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its ranks
        process.wait()
        return None


def _environment() -> dict[str, str]:
    """torch resolves the name of each peer of a TCPStore; a lost answer of a name server would cost 5 s."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "RES_OPTIONS": "attempts:0"}


class SharedProcesses:
    """`fork_server` forks trainers, agents and coordinators, `references` ranks without DeadPool."""

    def __init__(self) -> None:
        self.stopping = threading.Event()  # running scripts end soon, and no other one is begun
        self.fork_server = SharedForkServer(forks_commands=True)
        self.references = ReferenceRuns(self.stopping)

    def close(self) -> None:
        self.references.close()
        self.fork_server.close()
