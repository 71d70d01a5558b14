"""Runs a script as torchrun would, without DeadPool: what an undisturbed job gives. Ranks are forked: no imports.

tests/e2e/test_references.py holds it against the real torchrun.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

from ports import reserved_port

PRELOAD = [
    "deadpool_lab.workload.plain_torch",
    "torch",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.optim",
]
_DEADLINE_S = 300.0  # bounds only a run that fails
_STACKS_S = 10.0
_context = multiprocessing.get_context("forkserver")


def start_forkserver() -> None:
    """Once, before the first test is looked after; one that other tests have started will do."""
    _context.set_forkserver_preload(PRELOAD)
    resource_tracker.ensure_running()
    forkserver.ensure_running()


def run_ranks(
    script: Path,
    arguments: list[str],
    world_size: int,
    console: Path,
    variables: dict[str, str] | None = None,
    deadline_s: float = _DEADLINE_S,
) -> None:
    """To the end of all ranks; AssertionError with what they said if one fails, or does not end in time."""
    with reserved_port() as port:
        ranks = [
            _context.Process(
                target=_be_rank, args=(str(script), arguments, rank, world_size, port, str(console), variables or {})
            )
            for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
        ends_at = time.monotonic() + deadline_s
        for process in ranks:
            process.join(max(0.0, ends_at - time.monotonic()))
        codes = [process.exitcode for process in ranks]
        _end(ranks)
    late = [rank for rank, code in enumerate(codes) if code is None]
    told = (
        f"ranks {late} had not ended after {deadline_s:g} s and were killed, their stacks are below; " if late else ""
    )
    assert codes == [0] * world_size, f"{told}exit codes {codes}:\n{console.read_text()}"


def _end(ranks: list[multiprocessing.context.ForkServerProcess]) -> None:
    late = [process for process in ranks if process.is_alive()]
    for process in late:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGABRT)  # faulthandler prints its stacks
    for process in late:
        process.join(_STACKS_S)
    for process in ranks:
        process.kill()
        process.join()
        process.close()


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

    from deadpool_lab.workload.plain_torch import run_to_end

    torch.set_num_threads(1)
    run_to_end(script, arguments)
