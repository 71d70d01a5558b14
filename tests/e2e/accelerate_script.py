"""A small training with Accelerate, whose loop is the script's: prepared loader, accumulation, clipping, a scheduler,
mixed precision as the launcher says.

Nothing is downloaded. Each rank notes the losses and counters of every update, and in the end a digest of model and
optimizer.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from acts import act
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from deadpool.integrations.accelerate import endless, protect

ROWS, WIDTH = 42, 12


class Rows(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self._x = torch.randn(ROWS, WIDTH, generator=generator)
        self._y = torch.randint(3, (ROWS,), generator=generator)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._x[index], self._y[index]


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Rows in an order that is drawn from a generator of its own."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self._rng = rows, np.random.default_rng(4)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from (self._rows[int(index)] for index in self._rng.permutation(len(self._rows)))


def mask(rows: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    x = torch.stack([row[0] for row in rows])
    return [x.masked_fill(torch.rand(x.shape) < 0.15, 0.0), torch.stack([row[1] for row in rows])]


def digest() -> str:
    hasher = hashlib.sha256()
    tensors: dict[str, Any] = dict(model.state_dict())
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer {index} {name}": each for name, each in state.items()}
    for name, tensor in sorted(tensors.items()):
        hasher.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return hasher.hexdigest()


parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--updates", type=int, default=18)
parser.add_argument("--stream", action="store_true", help="an IterableDataset")
parser.add_argument("--no-dispatch", action="store_true", help="each rank reads the stream by itself")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--save-at", type=int, default=-1)
parser.add_argument("--load", type=Path, help="begin with this checkpoint of Accelerate")
parser.add_argument("--wrong-end", action="store_true", help="a step that ends in the middle of an update")
parser.add_argument("--as-it-is", action="store_true", help="pass the loader without endless()")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=2,
    dataloader_config=DataLoaderConfiguration(dispatch_batches=False if args.no_dispatch else None),
)
torch.manual_seed(3)
plain = nn.Sequential(nn.Linear(WIDTH, 24), nn.BatchNorm1d(24), nn.Dropout(0.1), nn.Linear(24, 3))
adam = torch.optim.AdamW(plain.parameters(), lr=1e-2)
rows = Rows()
model, optimizer, loader, scheduler = accelerator.prepare(
    plain,
    adam,
    DataLoader(
        Stream(rows) if args.stream else rows,
        batch_size=2,
        shuffle=not args.stream,
        collate_fn=mask,
        num_workers=args.workers,
    ),
    torch.optim.lr_scheduler.StepLR(adam, 6, 0.8),
)
if args.load is not None:
    accelerator.load_state(str(args.load))
torch.manual_seed(100 + accelerator.process_index)
batches = endless(loader)
job = protect(accelerator, model=model, force=True, data=loader if args.as_it_is else batches)
with (args.out / f"rank{accelerator.process_index}.jsonl").open("a") as file:
    for step in job.steps(args.updates):
        with step:
            act(step.number)
            noted = []
            while True:
                x, y = next(batches)
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(x), y)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                noted.append(loss.item().hex())
                if accelerator.sync_gradients or (args.wrong_end and step.number == 3 and not step.dry):
                    break
            if step.number == args.save_at and not step.dry:
                accelerator.save_state(str(args.out / "checkpoint"))
            figures = (accelerator.step, loader.iteration, scheduler.get_last_lr(), accelerator.mixed_precision)
            line = {"step": step.number, "loss": f"{noted} {figures}"}
            if not step.dry:
                times = {"ended": time.time(), "cpu_s": time.process_time()}
                print(json.dumps(line | times), file=file, flush=True)
    print(json.dumps({"digest": digest()}), file=file, flush=True)
