"""Trains a classifier with lightning.Fabric, which leaves the loop to you, and a metric of torchmetrics that adds up.

deadpool run --nodes 2 --spares 1 examples/train_fabric.py
torchrun --nproc-per-node 2 examples/train_fabric.py      # unprotected
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from lightning import Fabric
from torch import Tensor, nn
from torch.utils.data import Dataset, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchmetrics.classification import MulticlassAccuracy

import deadpool

WIDTH, CLASSES = 16, 4


class Points(Dataset[tuple[Tensor, Tensor]]):
    """Random points; a fixed function of them tells their class."""

    def __init__(self, count: int) -> None:
        self._x = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(1))
        self._y = self._x[:, :CLASSES].sin().argmax(dim=1)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._x[index], self._y[index]


def endless(loader: StatefulDataLoader) -> Iterator[tuple[Tensor, Tensor]]:
    """The epoch is in the sampler, which is captured with its loader; a variable here would not be."""
    while True:
        yield from loader
        loader.sampler.set_epoch(loader.sampler.epoch + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8, help="points per rank")
    parser.add_argument("--precision", default="32-true", help="as of Fabric")
    args = parser.parse_args()
    joined = deadpool.join()  # before Fabric, which uses the process group that it finds
    devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    nodes = dist.get_world_size() // devices
    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=devices, num_nodes=nodes, precision=args.precision)
    fabric.launch()
    fabric.seed_everything(0)
    net = nn.Sequential(nn.Linear(WIDTH, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, CLASSES))
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=1e-2))
    accuracy = MulticlassAccuracy(CLASSES).to(fabric.device)
    points = Points(25 * args.batch * dist.get_world_size())
    loader = StatefulDataLoader(points, args.batch, sampler=DistributedSampler(points, seed=2))
    batches = endless(loader)
    fabric.seed_everything(1 + fabric.global_rank)  # dropout
    job = joined.protect(model=model, optimizer=optimizer, accuracy=accuracy, data=loader)

    for step in job.steps(args.steps):
        with step:
            x, y = fabric.to_device(next(batches))
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            accuracy.update(logits, y)
            so_far = accuracy.compute()  # of all ranks, since the epoch began
            if (step.number + 1) % len(loader) == 0:
                accuracy.reset()
            if fabric.global_rank == 0 and not step.dry:
                print(f"step {step.number} loss {loss.item():.9g} accuracy {so_far.item():.9g}", flush=True)
    print(f"rank {fabric.global_rank} ends with state {job.digest()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
