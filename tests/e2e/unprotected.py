"""Runs a script as torchrun would, without DeadPool: what an undisturbed job gives. Ranks are forked: no imports.

tests/e2e/test_references.py holds it against the real torchrun.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import socket
import sys
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

PRELOAD = ["torch", "torch.distributed.fsdp", "torch.distributed.pipelining", "torch.distributed.optim"]
_DEADLINE_S = 90.0
_context = multiprocessing.get_context("forkserver")


def start_forkserver() -> None:
    """Once, before the first test is looked after; one that other tests have started will do."""
    _context.set_forkserver_preload(PRELOAD)
    resource_tracker.ensure_running()
    forkserver.ensure_running()


def run_ranks(
    script: Path, arguments: list[str], world_size: int, console: Path, variables: dict[str, str] | None = None
) -> None:
    """To the end of all ranks; AssertionError with what they said if one fails."""
    port = _free_port()
    ranks = [
        _context.Process(
            target=_be_rank, args=(str(script), arguments, rank, world_size, port, str(console), variables or {})
        )
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(_DEADLINE_S)
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
        process.join()
        process.close()
    assert codes == [0] * world_size, f"exit codes {codes}:\n{console.read_text()}"


def _be_rank(
    script: str,
    arguments: list[str],
    rank: int,
    world_size: int,
    port: int,
    console: str,
    variables: dict[str, str],
) -> None:
    output = os.open(console, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        OMP_NUM_THREADS="1",
        **variables,
    )
    import torch

    torch.set_num_threads(1)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
