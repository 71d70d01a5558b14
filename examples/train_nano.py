"""Trains a nanoGPT on the bytes of a text with FSDP2, in one file. The lines that DeadPool adds are marked.

    deadpool run --nodes 2 --spares 1 examples/train_nano.py --steps 200
    torchrun --nproc-per-node 2 examples/train_nano.py --steps 200     # the same training, unprotected

Kill a node while the first command runs (`deadpool node kill --node n1`): the losses stay the same, to the last bit.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import deadpool  # DeadPool


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attend(self.norm_1(x)))
        return x + self.dropout(self.mlp(self.norm_2(x)))

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.project(mixed.transpose(1, 2).reshape(batch, length, width))


class NanoGPT(nn.Module):
    def __init__(self, *, layers: int, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Text:
    """Random windows of a file's bytes. Its position can be saved, so it can be protected like a stateful loader."""

    def __init__(self, path: Path, *, batch: int, context: int, rank: int) -> None:
        self.data = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()
        self.batch, self.context, self.rank, self.position = batch, context, rank, 0

    def __next__(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1_000_003 * self.position + self.rank)
        self.position += 1
        starts = torch.randint(len(self.data) - self.context, (self.batch, 1), generator=generator)
        windows = self.data[starts + torch.arange(self.context + 1)]
        return windows[:, :-1], windows[:, 1:]

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--text", type=Path, default=Path(argparse.__file__), help="the file to train on")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8, help="sequences per rank")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--backend", default="gloo", choices=("gloo", "nccl"))
    return parser.parse_args()


def main() -> None:
    args = arguments()
    device = torch.device("cpu")
    if args.backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(args.backend)

    torch.manual_seed(0)
    model = NanoGPT(
        layers=args.layers, width=args.width, heads=args.heads, context=args.context, dropout=args.dropout
    ).to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    text = Text(args.text, batch=args.batch, context=args.context, rank=dist.get_rank())
    torch.manual_seed(1 + dist.get_rank())  # dropout
    job = deadpool.protect(model=model, optimizer=optimizer, scheduler=scheduler, data=text)  # DeadPool

    for step in job.steps(args.steps):  # DeadPool: instead of range
        with step:  # DeadPool
            tokens, targets = (each.to(device) for each in next(text))
            loss = model(tokens, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if dist.get_rank() == 0 and not step.dry:
                print(f"step {step.number} loss {loss.item():.9g}", flush=True)
    print(f"rank {dist.get_rank()} ends with state {job.digest()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
