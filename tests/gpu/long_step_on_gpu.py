"""One step of rank 1 takes much longer than the others, the first time that it is done: it waits for a lock for ever,
or evaluates on its device. Meanwhile the hosts of the other ranks wait for their devices, which spin."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import deadpool

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
from small_job import inputs_of, make_model, make_parser, note_step, reduce_over

STEPS, LONG_STEP, SECONDS = 40, 30, 12.0


def wait_for_ever() -> None:
    threading.Event().wait()


def evaluate() -> None:
    """Keeps the device busy, and waits for it after each batch."""
    end = time.monotonic() + SECONDS
    matrix = torch.randn(4096, 4096, device="cuda")
    while time.monotonic() < end:
        for _ in range(100):
            matrix = matrix @ matrix / matrix.norm()
        matrix.sum().item()


DOING = {"wait": wait_for_ever, "evaluate": evaluate}
parser = make_parser()
parser.add_argument("--doing", choices=list(DOING), required=True)
args = parser.parse_args()
pool = deadpool.join(backend="nccl")
torch.cuda.set_device(0)
model = make_model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(1 + pool.rank)
job = pool.protect(model=model, optimizer=optimizer)
args.out.mkdir(parents=True, exist_ok=True)
mark = Path(args.out) / "done"
with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
    for step in job.steps(STEPS):
        with step:
            loss = model(inputs_of(step.number, pool.rank).cuda()).square().mean()
            loss.backward()
            if step.number == LONG_STEP and pool.rank == 1 and not step.dry and not mark.exists():
                mark.touch()
                DOING[args.doing]()
            time.sleep(0.1)
            reduce_over(None, model)
            optimizer.step()
            optimizer.zero_grad()
            if not step.dry:
                note_step(file, step.number, loss)
    print(json.dumps({"digest": job.digest()}), file=file)
dist.destroy_process_group()
