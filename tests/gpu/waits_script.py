"""Rank 1 keeps the others waiting on their devices, while their hosts spin. In one step, the first time it is done, it
waits for a lock for ever, or evaluates on its device; or its device is slow in every step."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import deadpool
from deadpool.trainer.capture import meters

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
from small_job import inputs_of, make_model, make_parser, note_step, reduce_over

LONG_STEP, EVALUATION_S = 30, 12.0


def wait_for_ever() -> None:
    threading.Event().wait()


def evaluate() -> None:
    """Enqueues seconds of work, and waits for it."""
    matrix = torch.randn(4096, 4096, device="cuda")
    end = time.monotonic() + EVALUATION_S
    while time.monotonic() < end:
        for _ in range(1000):
            matrix = matrix @ matrix / 64
        matrix.sum().item()


DOING = {"wait": wait_for_ever, "evaluate": evaluate, "be slow": lambda: None}
parser = make_parser()
parser.add_argument("--doing", choices=list(DOING), required=True)
parser.add_argument("--steps", type=int, default=40)
args = parser.parse_args()
meters.MEASURE_EVERY_S = 5.0
pool = deadpool.join(backend="nccl")
torch.cuda.set_device(0)
model = make_model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(1 + pool.rank)
job = pool.protect(model=model, optimizer=optimizer)
args.out.mkdir(parents=True, exist_ok=True)
mark = Path(args.out) / "done"
ballast = torch.randn(4096, 4096, device="cuda")
with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
    for step in job.steps(args.steps):
        with step:
            loss = model(inputs_of(step.number, pool.rank).cuda()).square().mean()
            loss.backward()
            if step.number == LONG_STEP and pool.rank == 1 and not step.dry and not mark.exists():
                mark.touch()
                DOING[args.doing]()
            for _ in range(40 if args.doing == "be slow" and pool.rank == 1 else 5):
                ballast = ballast @ ballast / 64
            reduce_over(None, model)
            optimizer.step()
            optimizer.zero_grad()
            if not step.dry:
                note_step(file, step.number, loss)  # reads the loss: the host spins until the device is done
    print(json.dumps({"digest": job.digest()}), file=file)
dist.destroy_process_group()
