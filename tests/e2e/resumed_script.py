"""A loop of one's own that begins with the newest checkpoint it finds, and writes one every few steps.

The checkpoint is the script's business: each rank's model, optimizer, generator and the number of updates, loaded
before `protect`. A process that starts later finds a newer one than the job began with, and another one than the
snapshots that the others have.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from small_job import WIDTH, inputs_of, make_model, note_step, reduce_over
from torch import Tensor
from torch.utils.data import DataLoader

import deadpool


class Updates:
    """Counts over the jobs, as a script's own counter does."""

    def __init__(self) -> None:
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


def mask(rows: list[Tensor]) -> Tensor:
    x = torch.stack(rows)
    return x.masked_fill(torch.rand(x.shape) < 0.1, 0.0)


def batches() -> Iterator[Tensor]:
    while True:
        yield from loader


def newest(folder: Path) -> dict[str, Any] | None:
    """Checkpoints have the number of updates. All ranks have written one before any goes on."""
    found = sorted(folder.glob(f"rank{pool.rank}-*.pt")) if folder.exists() else []
    return torch.load(found[-1], weights_only=True) if found else None


def save(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "updates": updates.done}
    target = folder / f"rank{pool.rank}-{updates.done:04}.pt"
    torch.save({**state, "rng": torch.get_rng_state()}, target.with_suffix(".new"))
    target.with_suffix(".new").rename(target)


parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--checkpoints", type=Path, help="where one is looked for at the start")
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--save-every", type=int, default=3)
args = parser.parse_args()
pool = deadpool.join(backend="gloo")
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
updates = Updates()
torch.manual_seed(1 + pool.rank)
if (state := newest(args.checkpoints or args.out / "checkpoints")) is not None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    updates.done = state["updates"]
    torch.set_rng_state(state["rng"])
rows = torch.cat([inputs_of(step, pool.rank) for step in range(4)])
loader = DataLoader(list(rows), batch_size=4, shuffle=True, collate_fn=mask)
job = deadpool.protect(model=model, optimizer=optimizer, updates=updates, data=loader)
drawn = batches()
args.out.mkdir(parents=True, exist_ok=True)
with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
    for step in job.steps(args.steps):
        with step:
            batch = next(drawn)
            assert batch.shape[1] == WIDTH
            loss = model(batch).square().mean()
            loss.backward()
            reduce_over(None, model)
            optimizer.step()
            optimizer.zero_grad()
            updates.done += 1
            if not step.dry:
                note_step(file, updates.done - 1, loss)
                if updates.done % args.save_every == 0:
                    save(args.out / "checkpoints")
    print(json.dumps({"digest": job.digest()}), file=file)
