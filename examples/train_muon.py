"""Trains a small GPT on a file's bytes with two optimizers: Muon for the matrices of its blocks, AdamW for the rest.

deadpool run --nodes 2 --spares 1 examples/train_muon.py
torchrun --nproc-per-node 2 examples/train_muon.py      # unprotected
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import deadpool


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.project = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(F.rms_norm(x, x.shape[-1:])).unflatten(-1, (3, self.heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(F.rms_norm(x, x.shape[-1:]))).square())


class SmallGPT(nn.Module):
    def __init__(self, layers: int, width: int, context: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads=4) for _ in range(layers))
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--text", type=Path, default=Path(argparse.__file__), help="the file to train on")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8, help="sequences per rank")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(SmallGPT(args.layers, args.width, args.context))
    matrices = [param for name, param in model.named_parameters() if ".blocks." in name]
    rest = [param for name, param in model.named_parameters() if ".blocks." not in name]
    muon = torch.optim.Muon(matrices, lr=0.02, momentum=0.85)
    adamw = torch.optim.AdamW(rest, lr=3e-3)
    job = deadpool.protect(model=model, muon=muon, adamw=adamw)
    data = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8).long()
    rates = {optimizer: optimizer.param_groups[0]["lr"] for optimizer in (muon, adamw)}

    for step in job.steps(args.steps):
        with step:
            # Windows, learning rates and momentum follow from the number of the step: nothing else has to be kept.
            generator = torch.Generator().manual_seed(1_000_003 * step.number + dist.get_rank())
            starts = torch.randint(len(data) - args.context, (args.batch, 1), generator=generator)
            windows = data[starts + torch.arange(args.context + 1)]
            for optimizer, rate in rates.items():
                optimizer.param_groups[0]["lr"] = rate * min(1.0, 2 - 2 * step.number / args.steps)
            muon.param_groups[0]["momentum"] = 0.85 + 0.1 * min(1.0, step.number / 30)
            loss = model(windows[:, :-1], windows[:, 1:])
            loss.backward()
            for optimizer in rates:
                optimizer.step()
                optimizer.zero_grad()
            if dist.get_rank() == 0 and not step.dry:
                print(f"step {step.number} loss {loss.item():.9g}", flush=True)
    print(f"rank {dist.get_rank()} ends with state {job.digest()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
