"""Exceptions that leave a step and are the script's own, and a connection that breaks between processes that live."""

from __future__ import annotations

import contextlib
import json
import os
import socket

import torch
import torch.distributed as dist
from acts import act
from small_job import STEPS, inputs_of, make_model, make_parser, reduce_over

import deadpool
from deadpool.backend.gloo_connections import connected, open_sockets

WHERE = 4


def first_time(what: str) -> bool:
    mark = args.out / f"{what}-{pool.rank}"
    known = mark.exists()
    mark.touch()
    return not known


def cut_connections() -> None:
    """As a device between the machines does that forgets its connections: those of gloo, which have no name here."""
    for each in connected(open_sockets() - known_sockets):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(each.fd)) as end:
            end.shutdown(socket.SHUT_RDWR)


def update(step: int) -> None:
    if args.what == "cut" and step == WHERE and pool.rank == 1 and first_time("cut"):
        act(step)
        cut_connections()
    try:
        reduce_over(None, model)
        optimizer.step()
    except RuntimeError:
        if args.what != "cut":
            raise
    optimizer.zero_grad()


parser = make_parser()
parser.add_argument("--what", choices=["stop", "cut", "nothing"], required=True)
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)
known_sockets = open_sockets()
pool = deadpool.join(backend="gloo")
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(1 + pool.rank)
job = pool.protect(model=model, optimizer=optimizer)
batches = iter(range(WHERE))
with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
    for step in job.steps(STEPS):
        try:
            with step:
                if args.what == "stop" and not step.dry:
                    next(batches)
                loss = model(inputs_of(step.number, pool.rank)).square().mean()
                loss.backward()
                update(-1 if step.dry else step.number)
                if not step.dry:
                    note = {"step": step.number, "loss": loss.item().hex(), "ended": 0.0, "cpu_s": 0.0}
                    print(json.dumps(note), file=file, flush=True)
        except StopIteration:
            batches = iter(range(STEPS))
    print(json.dumps({"digest": job.digest()}), file=file)
dist.destroy_process_group()
