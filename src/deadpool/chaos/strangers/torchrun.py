"""torchrun without its imports: a process that has imported torch, and forks torch's own launcher for each request.

Runs as a process of its own (`python -m`): the command that asks has no torch in it. Requests are lines of JSON on the
standard input: {"id", "script", "arguments", "world_size", "console", "folder"}, or {"stop": id}, answers are
{"id", "code"} on the standard output. It ends with its input, and its children with it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import runpy
import selectors
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed.fsdp
import torch.distributed.optim
import torch.distributed.pipelining
import torch.distributed.tensor
import torch.utils.checkpoint
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from deadpool.child_processes import end_with_parent

_MONITOR_S = 0.05


class Launchers:
    """The launchers that are running, by the id of their request. Each is the head of a process group."""

    def __init__(self) -> None:
        self._ready = selectors.DefaultSelector()
        self._ready.register(sys.stdin, selectors.EVENT_READ)
        self._running: dict[int, tuple[int, int]] = {}  # process -> id, descriptor

    def serve(self) -> None:
        while True:
            for key, _ in self._ready.select():
                if key.data is not None:
                    self._ended(key.data)
                elif not self._read():
                    return self._end_all()

    def _read(self) -> bool:
        line = sys.stdin.readline()
        if not line:
            return False
        request = json.loads(line)
        if "stop" in request:
            self._stop(request["stop"])
        else:
            self._start(request)
        return True

    def _start(self, request: dict[str, Any]) -> None:
        arm = end_with_parent()
        pid = os.fork()
        if not pid:
            arm()
            _be_launcher(request)
        descriptor = os.pidfd_open(pid)
        self._running[pid] = request["id"], descriptor
        self._ready.register(descriptor, selectors.EVENT_READ, pid)

    def _stop(self, number: int) -> None:
        """Its ranks tell where they stand, and all of it ends."""
        for pid, (known, _) in self._running.items():
            if known == number:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGABRT)

    def _ended(self, pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        number, descriptor = self._running.pop(pid)
        self._ready.unregister(descriptor)
        os.close(descriptor)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what a launcher that was stopped has left
        print(json.dumps({"id": number, "code": os.waitstatus_to_exitcode(status)}), flush=True)

    def _end_all(self) -> None:
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def _be_launcher(request: dict[str, Any]) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        output = os.open(request["console"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(request["folder"])
        _launch(request)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _launch(request: dict[str, Any]) -> None:
    """As `torchrun --standalone --nproc-per-node N` does, but with ranks that are forked."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=request["world_size"],
        run_id=f"stranger-{request['id']}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork",
        max_restarts=0,
        monitor_interval=_MONITOR_S,
        logs_specs=DefaultLogsSpecs(log_dir=str(Path(request["console"]).parent / "elastic")),
    )
    elastic_launch(config, be_rank)(request["script"], request["arguments"])


def be_rank(script: str, arguments: list[str]) -> None:
    faulthandler.enable()
    torch.set_num_threads(1)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    Launchers().serve()
