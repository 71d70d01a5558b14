"""Builds each layout named on the command line in one set of processes and does the first half of a step in it.

Rank 0 prints per layout one line of JSON: what one process that has all of the data should find too.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist

from deadpool.demo.gpt import GPT, RandomBatches, Size, mean_loss
from deadpool_lab.workload import layouts
from deadpool_lab.workload.layouts.assembly import Assembly, LayoutOptions, local_norm

SIZE = Size(layers=6, width=64, sequence=32, vocabulary=256)


def look_at(built: Assembly) -> dict[str, object]:
    loss = built.train_step(*next(RandomBatches(SIZE, built.data_rank, built.sequences)))
    found = [(built.data_rank, float(loss), float(built.norm()), float(local_norm(built.model.parameters())))]
    everybody: list[list[tuple[int, float, float, float]]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everybody, found)
    return {"seen": [each for rank in everybody for each in rank], **expected(built)}


def expected(built: Assembly) -> dict[str, object]:
    torch.manual_seed(0)
    model = GPT(SIZE)
    losses = [mean_loss(model(tokens), targets) for tokens, targets in _all_batches(built)]
    torch.stack(losses).mean().backward()
    return {"losses": [float(loss) for loss in losses], "norm": float(local_norm(model.parameters()))}


def _all_batches(built: Assembly) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [next(RandomBatches(SIZE, data_rank, built.sequences)) for data_rank in range(built.data_size)]


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for name in sys.argv[1:]:
        line = look_at(layouts.build(name, LayoutOptions(size=SIZE)))
        if dist.get_rank() == 0:
            print(json.dumps({"layout": name, **line}), flush=True)
    dist.destroy_process_group()
