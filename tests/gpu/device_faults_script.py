"""Data parallelism by hand on a device on which something goes wrong in one step of one rank.

`assert` fails on the device, once; `asserts` each time; `hang` starts a kernel that does not end, once. Where it is
`once`, a file says that it has happened.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import deadpool

WIDTH, STEPS, AT_STEP, AT_RANK = 64, 8, 4, 1
ENDLESS_CYCLES = 10**15  # days


def inputs_of(step: int, rank: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(1_000_003 * step + rank)
    return torch.randn(16, WIDTH, generator=generator).to(device)


def average(tensor: Tensor, backend: str) -> None:
    """What crosses ranks travels by way of the host where the backend is one for the host."""
    carried = tensor.cpu() if backend == "gloo" else tensor
    dist.all_reduce(carried)
    tensor.copy_(carried / dist.get_world_size())


def go_wrong(fault: str, device: torch.device) -> None:
    match fault:
        case "assert" | "asserts":
            torch.zeros(4, device=device)[torch.tensor([9], device=device)]
            torch.cuda.synchronize()
        case "hang":
            torch.cuda._sleep(ENDLESS_CYCLES)


def is_due(fault: str, marks: Path) -> bool:
    happened = marks / f"happened-{fault}"
    if fault == "asserts" or not happened.exists():
        happened.touch()
        return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--fault", choices=("none", "assert", "asserts", "hang"), default="none")
    args = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    args.out.mkdir(parents=True, exist_ok=True)
    pool = deadpool.join(backend=args.backend)
    device = torch.device(args.device)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + pool.rank)
    job = pool.protect(model=model, optimizer=optimizer)
    with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
        for step in job.steps(STEPS):
            with step:
                due = (step.number, pool.rank) == (AT_STEP, AT_RANK) and not step.dry
                if due and is_due(args.fault, args.out):
                    go_wrong(args.fault, device)
                loss = F.dropout(model(inputs_of(step.number, pool.rank, device)), 0.1).square().mean()
                loss.backward()
                for parameter in model.parameters():
                    average(parameter.grad, args.backend)
                optimizer.step()
                optimizer.zero_grad()
                if not step.dry:
                    note = {"step": step.number, "loss": loss.item().hex(), "ended": 0.0, "cpu_s": 0.0}
                    print(json.dumps(note), file=file, flush=True)
        print(json.dumps({"digest": job.digest()}), file=file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
