"""A training script with checkpoints of its own, as a job needs that is requeued at its time limit.

torchrun --nproc-per-node 2 checkpoint_script.py FOLDER STOP-FILE
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import deadpool

EVERY, LONGEST = 10, 100_000
folder, stop = Path(sys.argv[1]), Path(sys.argv[2])


def is_over(step: int) -> bool:
    return stop.exists() and step >= int(stop.read_text() or step + 1)


def save(path: Path, state: dict[str, object]) -> None:
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


pool = deadpool.join(backend="gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
checkpoint, first = folder / "checkpoint.pt", 0
if checkpoint.exists():
    loaded = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    first = loaded["step"]
dist.barrier()  # all ranks have loaded the same one before it is written again
job = pool.protect(model=model, optimizer=optimizer)
with (folder / f"rank{pool.rank}.jsonl").open("a") as file:
    for each in job.steps(LONGEST):
        number = first + each.number
        if is_over(number):
            break
        with each:
            generator = torch.Generator().manual_seed(1_000_003 * number + pool.rank)
            inputs = torch.randn(4, 8, generator=generator)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(float(os.environ.get("PACE_S", "0")))
            if not each.dry:
                times = {"began": time.time(), "ended": time.time(), "cpu_s": time.process_time()}
                file.write(json.dumps({"step": number, "loss": loss.item().hex(), **times}) + "\n")
                file.flush()
                if pool.rank == 0 and number % EVERY == EVERY - 1:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": number + 1}
                    save(checkpoint, state)
    file.write(json.dumps({"digest": job.digest()}) + "\n")
dist.destroy_process_group()
