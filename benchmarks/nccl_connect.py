"""Measures how NCCL's groups of a 2 x 2 x 2 layout are best connected anew: 8 processes that share one GPU, four each.

    LD_PRELOAD=$PWD/out/libnccl.so.2 NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_NCHANNELS=8 python benchmarks/nccl_connect.py

Prints the time of the slowest rank: groups connected one after the other and in a thread each, with nothing to clean
up, and with communicators to abort whose kernels wait for ranks that do not come, beside the connecting and before it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from deadpool.control.launch.folder_lock import temporary_folder

RANKS = 8
POLL_S = 0.002


def groups_of(rank: int) -> dict[str, list[int]]:
    stage, inner = rank // 4 * 4, rank % 4
    return {
        "all": list(range(RANKS)),
        f"pipeline {inner}": [inner, inner + 4],
        f"data {stage + rank % 2}": [stage + rank % 2, stage + 2 + rank % 2],
        f"tensor {rank // 2}": [rank // 2 * 2, rank // 2 * 2 + 1],
    }


class Rank:
    def __init__(self, rank: int, path: Path) -> None:
        import torch
        import torch.distributed as dist

        self._rank, self._torch, self._dist = rank, torch, dist
        self._store = dist.FileStore(str(path), RANKS)
        torch.cuda.set_device(0)

    def make(self, tag: str) -> list[Any]:
        from torch._C._distributed_c10d import ProcessGroupNCCL

        made = []
        for name, ranks in groups_of(self._rank).items():
            options = ProcessGroupNCCL.Options()
            options._timeout = timedelta(seconds=100)
            store = self._dist.PrefixStore(f"{tag} {name}", self._store)
            made.append(ProcessGroupNCCL(store, ranks.index(self._rank), len(ranks), options))
        return made

    def use(self, group: Any) -> None:
        self._torch.cuda.set_device(0)  # each thread has a current device of its own
        with self._torch.cuda.stream(self._torch.cuda.Stream()):
            group.allreduce([self._torch.zeros(1, device="cuda")]).wait()
            self._torch.cuda.current_stream().synchronize()

    def leave_kernels_waiting(self, groups: list[Any]) -> None:
        if self._rank < RANKS - 2:
            for group in groups:
                group.allreduce([self._torch.zeros(1, device="cuda")])

    def time(self, what: str, action: Callable[[], None]) -> None:
        self._barrier(f"before {what}")
        began = time.monotonic()
        action()
        self._store.set(f"{what} {self._rank}", str(time.monotonic() - began))
        self._barrier(f"after {what}")
        if self._rank == 0:
            worst = max(float(self._store.get(f"{what} {rank}")) for rank in range(RANKS))
            print(f"{what}: {worst:.2f} s", flush=True)

    def _barrier(self, name: str) -> None:
        self._store.add(name, 1)
        while self._store.add(name, 0) < RANKS:
            time.sleep(POLL_S)


def side_by_side(action: Callable[[Any], Any], groups: list[Any]) -> list[threading.Thread]:
    threads = [threading.Thread(target=action, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    return threads


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join()


def measure(number: int, path: Path) -> None:
    rank = Rank(number, path)

    def connect(groups: list[Any]) -> None:
        for group in groups:
            rank.use(group)

    def abort(groups: list[Any]) -> list[threading.Thread]:
        return side_by_side(lambda group: group.abort(), groups)

    def abort_beside(old: list[Any], new: list[Any]) -> None:
        aborts = abort(old)
        connect(new)
        join(aborts)

    def abort_before(old: list[Any], new: list[Any]) -> None:
        join(abort(old))
        connect(new)

    first, second, third, fourth = (rank.make(f"set {index}") for index in range(4))
    rank.time("the first groups of the processes", lambda: connect(first))
    rank.time("one after the other", lambda: connect(second))
    rank.time("in threads", lambda: join(side_by_side(rank.use, third)))
    join(abort(first))
    rank.leave_kernels_waiting(second)
    rank.time("one after the other, beside an abort", lambda: abort_beside(second, fourth))
    fifth = rank.make("set 5")
    rank.leave_kernels_waiting(third)
    rank.time("one after the other, after an abort", lambda: abort_before(third, fifth))
    os._exit(0)  # torch would wait for the groups that are left


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit-s", type=float, default=120.0)
    limit_s = parser.parse_args().limit_s
    context = multiprocessing.get_context("spawn")
    with temporary_folder("deadpool-connect-") as folder:
        ranks = [context.Process(target=measure, args=(rank, folder / "store")) for rank in range(RANKS)]
        for each in ranks:
            each.start()
        deadline = time.monotonic() + limit_s
        for each in ranks:
            each.join(max(0.0, deadline - time.monotonic()))
        unfinished = [each for each in ranks if each.is_alive()]
        for each in unfinished:
            each.kill()
    if unfinished:
        raise SystemExit(f"{len(unfinished)} ranks did not end within {limit_s:g} s")


if __name__ == "__main__":
    main()
