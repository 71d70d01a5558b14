"""Runs scripts under torchrun without its imports: a process that has imported torch forks torch's own launcher.

Runs as a process of its own (`python -m`), because the command that asks does not import torch. Requests are lines of
JSON on the standard input: {"id", "script", "arguments", "world_size", "console", "folder"}, or {"stop": id}; answers
are {"id", "code"} on the standard output. The process ends when its input does, and its children end with it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import runpy
import signal
import sys
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

from deadpool.host.child_processes import ForkLoop
from deadpool_lab.workload.plain_torch import keep_groups

_MONITOR_S = 0.05


class Launchers:
    """The launchers that are running, each as the leader of a process group."""

    def __init__(self) -> None:
        self._loop = ForkLoop(sys.stdin, self._on_request, self._on_exit)
        self._running: dict[int, int] = {}  # by process: the id of its request

    def serve(self) -> None:
        """Returns when the standard input has ended, and all launchers with it."""
        self._loop.serve()
        for pid in self._running:
            _signal_group(pid, signal.SIGKILL)

    def _on_request(self) -> bool:
        line = sys.stdin.readline()
        if not line:
            return False
        request = json.loads(line)
        if "stop" in request:
            self._stop(request["stop"])
        else:
            self._running[self._loop.fork(lambda: _run_launcher(request))] = request["id"]
        return True

    def _stop(self, number: int) -> None:
        """Ends the ranks by SIGABRT, at which faulthandler prints their stacks."""
        for pid, known in self._running.items():
            if known == number:
                _signal_group(pid, signal.SIGABRT)

    def _on_exit(self, pid: int, code: int) -> None:
        _signal_group(pid, signal.SIGKILL)  # a launcher that was stopped leaves ranks behind
        print(json.dumps({"id": self._running.pop(pid), "code": code}), flush=True)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def _run_launcher(request: dict[str, Any]) -> None:
    os.setpgid(0, 0)
    output = os.open(request["console"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(request["folder"])
    _launch(request)


def _launch(request: dict[str, Any]) -> None:
    """Does what `torchrun --standalone --nproc-per-node N` does, but with ranks that are forked."""
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
    elastic_launch(config, run_rank)(request["script"], request["arguments"])


def run_rank(script: str, arguments: list[str]) -> None:
    faulthandler.enable()
    keep_groups()
    torch.set_num_threads(1)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    Launchers().serve()
