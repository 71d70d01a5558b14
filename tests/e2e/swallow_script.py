"""Rank 0 takes gradients from rank 1 in each step, and has a way of its own to deal with an exception there.

Rank 1 does not wait for its gradients to be taken: it may have completed the step, and its snapshot may be stored, when
rank 0 finds that it is dead. Rank 0 then leaves the batch out, as many a script does, and ends its step.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from acts import act
from small_job import STEPS, inputs_of, make_model, make_parser
from torch import Tensor, nn

import deadpool

TAG = 7


def flat_gradient(model: nn.Module) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def exchange_and_update() -> None:
    global sent
    mine = flat_gradient(model)
    if pool.rank == 1:
        sent = (dist.isend(mine, 0, tag=TAG), mine)
    else:
        theirs = torch.empty_like(mine)
        dist.recv(theirs, 1, tag=TAG)
        _add(theirs)
    optimizer.step()


def _add(theirs: Tensor) -> None:
    taken = 0
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad += theirs[taken : taken + parameter.numel()].view_as(parameter)
        taken += parameter.numel()


def leave_out() -> None:
    optimizer.zero_grad()
    (args.out / f"swallowed-{pool.rank}").touch()


def by_exception() -> None:
    try:
        exchange_and_update()
    except Exception:
        leave_out()


def by_anything() -> None:
    try:
        exchange_and_update()
    except:  # noqa: E722
        leave_out()


def by_suppression() -> None:
    updated = False
    with contextlib.suppress(Exception):
        exchange_and_update()
        updated = True
    if not updated:
        leave_out()


def by_trying_again() -> None:
    for _ in range(3):
        try:
            exchange_and_update()
            return
        except RuntimeError:
            continue
    leave_out()


WAYS: dict[str, Callable[[], None]] = {
    "exception": by_exception,
    "anything": by_anything,
    "suppression": by_suppression,
    "trying again": by_trying_again,
}

parser = make_parser()
parser.add_argument("--way", choices=WAYS, required=True)
args = parser.parse_args()
pool = deadpool.join(backend="gloo")
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(1 + pool.rank)
job = pool.protect(model=model, optimizer=optimizer)
args.out.mkdir(parents=True, exist_ok=True)
sent: tuple[dist.Work | None, Tensor] | None = None
with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
    for step in job.steps(STEPS):
        with step:
            if not step.dry:
                (args.out / f"pid-{pool.rank}").write_text(str(os.getpid()))
            dist.barrier()
            loss = model(inputs_of(step.number, pool.rank)).square().mean()
            loss.backward()
            if not step.dry:
                act(step.number if pool.rank == 0 else 100 + step.number)
            WAYS[args.way]()
            optimizer.zero_grad()
            if not step.dry:
                note = {"step": step.number, "loss": loss.item().hex(), "ended": 0.0, "cpu_s": 0.0}
                print(json.dumps(note), file=file, flush=True)
    print(json.dumps({"digest": job.digest()}), file=file)
dist.destroy_process_group()
