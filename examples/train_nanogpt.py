"""Trains a small GPT in the way of nanoGPT's train.py: tokens from a memory-mapped file by random offsets, gradients
that add up, autocast with a gradient scaler, a learning rate by hand, evaluation and a checkpoint by rank 0.

    deadpool run --nodes 2 --spares 1 examples/train_nanogpt.py
    torchrun --nproc-per-node 2 examples/train_nanogpt.py      # unprotected

The lines that DeadPool adds or moves are marked. Offsets and dropout come from torch's global generator, which is
captured. What the original keeps in variables from one step to the next is in protected objects here, or not kept: the
best loss so far, and the next batch, which the original loads ahead.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import deadpool  # DeadPool

VOCABULARY = 256


class GPT(nn.Module):
    def __init__(self, layers: int, width: int, context: int, dropout: float) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=4 * width, dropout=dropout, activation="gelu", batch_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context), persistent=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight
        x = self.blocks(x, mask=self.mask, is_causal=True)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


class Best:  # DeadPool: instead of a variable
    """The best loss of an evaluation so far."""

    def __init__(self) -> None:
        self.loss = math.inf

    def state_dict(self) -> dict[str, float]:
        return {"loss": self.loss}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.loss = state["loss"]


def prepare(folder: Path) -> None:
    """Writes train.bin and val.bin, if nobody has: every rank and every spare comes here."""
    folder.mkdir(parents=True, exist_ok=True)
    text = np.frombuffer(Path(argparse.__file__).read_bytes(), dtype=np.uint8).astype(np.uint16)
    cut = int(0.9 * len(text))
    for name, part in (("train", text[:cut]), ("val", text[cut:])):
        if not (folder / f"{name}.bin").exists():
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                file.write(part.tobytes())
            Path(file.name).replace(folder / f"{name}.bin")


def get_batch(folder: Path, split: str, args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    data = np.memmap(folder / f"{split}.bin", dtype=np.uint16, mode="r")
    starts = torch.randint(len(data) - args.context, (args.batch,)).tolist()
    windows = torch.stack([torch.from_numpy(data[at : at + args.context + 1].astype(np.int64)) for at in starts])
    return windows[:, :-1], windows[:, 1:]


def learning_rate(step: int, args: argparse.Namespace) -> float:
    if step < args.warmup:
        return args.lr * (step + 1) / (args.warmup + 1)
    done = min(1.0, (step - args.warmup) / max(1, args.steps - args.warmup))
    return 0.1 * args.lr + 0.9 * args.lr * 0.5 * (1 + math.cos(math.pi * done))


@torch.no_grad()
def estimate_loss(model: nn.Module, args: argparse.Namespace) -> dict[str, float]:
    model.eval()
    splits = ("train", "val")
    found = {
        split: torch.stack([model(*get_batch(args.data, split, args)) for _ in range(args.eval_batches)]).mean().item()
        for split in splits
    }
    model.train()
    return found


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """A step that is done again writes the same file again, never half of it."""
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path.with_suffix(".new")
    )
    path.with_suffix(".new").replace(path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--data", type=Path, default=Path("out/nanogpt"), help="folder for tokens and checkpoints")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank and micro-batch")
    parser.add_argument("--accumulation", type=int, default=3, help="micro-batches per step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--eval-every", type=int, default=10)
    parser.add_argument("--eval-batches", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    prepare(args.data)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1337)
    raw = GPT(args.layers, args.width, args.context, dropout=0.1)
    model = DistributedDataParallel(raw)
    optimizer = torch.optim.AdamW(raw.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=10, enabled=args.dtype == "float16")
    context = torch.autocast("cpu", dtype=getattr(torch, args.dtype), enabled=args.dtype != "float32")
    best = Best()
    torch.manual_seed(1337 + rank)
    job = deadpool.protect(model=model, optimizer=optimizer, scaler=scaler, best=best)  # DeadPool

    for step in job.steps(args.steps):  # DeadPool: instead of while True
        with step:  # DeadPool
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step.number, args)
            for micro_batch in range(args.accumulation):
                model.require_backward_grad_sync = micro_batch == args.accumulation - 1
                x, y = get_batch(args.data, "train", args)  # DeadPool: here, not one ahead
                with context:
                    loss = model(x, y) / args.accumulation
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            if rank == 0 and not step.dry:  # DeadPool: not in a rehearsal
                text = f"loss {loss.item() * args.accumulation:.9g} scale {scaler.get_scale():g}"
                if (step.number + 1) % args.eval_every == 0:
                    with job.pause("evaluation"):  # DeadPool: it takes long on purpose
                        found = estimate_loss(raw, args)
                    text += f" train {found['train']:.9g} val {found['val']:.9g}"
                    if found["val"] < best.loss:
                        best.loss = found["val"]
                        save(args.data / "checkpoint.pt", raw, optimizer, step.number)
                    text += f" best {best.loss:.9g}"
                print(f"step {step.number} {text}", flush=True)
    print(f"rank {rank} ends with state {job.digest()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
