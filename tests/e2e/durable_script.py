"""The workload, but before every step each rank saves what it holds, gathered by torch: what a checkpoint has to equal.

It also loads a checkpoint with plain torch: `--load FOLDER --expect FILE` builds the model on as many ranks as there
are, calls torch.distributed.checkpoint.load and compares.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from acts import act
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.tensor import DTensor

import deadpool
from deadpool.demo.gpt import RandomBatches, Size
from deadpool_lab.workload import layouts
from deadpool_lab.workload.layouts.assembly import Assembly, LayoutOptions

OPTIONS = LayoutOptions(size=Size(layers=2, width=64, sequence=32, vocabulary=256, dropout=0.1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--step-s", type=float, default=0.0, help="steps last so much longer until OUT/hurry exists")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--load", type=Path)
    parser.add_argument("--expect", type=Path)
    return parser.parse_args()


def whole(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The gathered tensor, and the lowest rank that it lies on."""
    if isinstance(tensor, DTensor):
        return tensor.full_tensor().detach().clone(), int(tensor.device_mesh.mesh.min())
    return tensor.detach().clone(), dist.get_rank()


def state_of(built: Assembly) -> dict[str, tuple[torch.Tensor, int]]:
    """By the names that plain torch gives."""
    names = {id(param): name.removeprefix("module.") for name, param in built.model.named_parameters()}
    found = {f"model.{names[id(param)]}": whole(param) for param in built.model.parameters()}
    for param, state in built.optimizer.state.items():
        for key, value in state.items():
            found[f"optimizer.state.{names[id(param)]}.{key}"] = whole(value)
    return found


def save(built: Assembly, out: Path, version: int) -> None:
    path = out / f"version-{version}-rank-{dist.get_rank()}.pt"
    draft = path.with_suffix(".draft")
    torch.save(state_of(built), draft)
    draft.replace(path)


def train(args: argparse.Namespace) -> None:
    pool = deadpool.join(backend="gloo")
    built = layouts.build(args.layout, OPTIONS)
    torch.manual_seed(1 + pool.rank)
    batches = RandomBatches(OPTIONS.size, built.data_rank, built.sequences)
    job = pool.protect(model=built.model, optimizer=built.optimizer, data=batches)
    args.out.mkdir(parents=True, exist_ok=True)
    for step in job.steps(args.steps):
        with step:
            if not step.dry:
                save(built, args.out, step.number)
                act(step.number)
            tokens, targets = next(batches)
            built.optimizer.zero_grad()
            loss = built.train_step(tokens, targets)
            built.optimizer.step()
            if not (args.out / "hurry").exists():
                time.sleep(args.step_s)
            if not step.dry:
                with (args.out / f"rank{pool.rank}.txt").open("a") as file:
                    file.write(f"{step.number} {float(loss).hex()}\n")
    save(built, args.out, args.steps)


def load(args: argparse.Namespace) -> None:
    """On any number of ranks, without DeadPool."""
    dist.init_process_group("gloo")
    built = layouts.build(args.layout, OPTIONS)
    with torch.no_grad():
        for param in built.model.parameters():
            param.zero_()
    state: dict[str, Any] = {"model": get_model_state_dict(built.model)}
    dcp.load(state, checkpoint_id=args.load)
    expected = torch.load(args.expect, weights_only=True)
    loaded = {f"model.{name}": whole(tensor)[0] for name, tensor in state["model"].items()}
    wrong = [name for name, tensor in loaded.items() if not torch.equal(tensor, expected[name][0])]
    if wrong or not loaded:
        print(f"{len(wrong)} of {len(loaded)} differ: {wrong}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    given = arguments()
    load(given) if given.load is not None else train(given)
