"""Ends right after destroy_process_group(), in a state in which plain torch hangs for certain. For torchrun as well.

Rank 0 holds the GIL from gate.release() on. A thread of its group needs the GIL before it can end. The last owner of
the group is in C++, the Reducer of a local DDP: it is freed when main() returns, and waits for that thread.
"""

from __future__ import annotations

import sys
import threading

import small_job
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import deadpool

HOUR_S = 3600.0


def main() -> None:
    args = small_job.make_parser().parse_args()
    pool = deadpool.join(backend="gloo")
    wrapped = DistributedDataParallel(nn.Linear(2, 2))  # not protected, so nobody else holds it
    wrapped(torch.ones(1, 2)).sum().backward()

    def reduce(model: nn.Module, step: int) -> None:
        small_job.reduce_over(None, model)

    def following(step: int) -> torch.Tensor:
        return small_job.inputs_of(step, pool.rank)

    gate = threading.Lock()
    small_job.train(
        pool, small_job.make_model(), args.out, reduce=reduce, following=following, at_end=lambda: end(gate)
    )
    print(f"rank {pool.rank} has destroyed its groups", flush=True)
    if pool.rank == 0:
        gate.release()


def end(gate: threading.Lock) -> None:
    """Leaves a thread of rank 0's group in a callback that waits for the gate."""
    total, token = torch.ones(1), torch.ones(1)
    if dist.get_rank() == 0:
        gate.acquire()
        sys.setswitchinterval(HOUR_S)  # no other thread gets the GIL unless this one waits
        work = dist.all_reduce(total, async_op=True)
        work.get_future().then(lambda _: gate.acquire())
        dist.send(token, 1)  # only now can the collective end: the callback is registered
        dist.recv(token, 1)  # the other rank needs this one no more
    else:
        dist.recv(token, 0)
        dist.all_reduce(total)
        dist.send(token, 0)


if __name__ == "__main__":
    main()
