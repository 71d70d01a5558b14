"""The training script of `false_alarms.py`: steps of a second, one of which takes rank 1 much longer."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEP_S = 1.0
WIDTH = 16
_BUSY = "import sys,time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"


def evaluate(seconds: float, out: Path) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        torch.randn(64, 64, generator=torch.Generator()).sum()


def compile(seconds: float, out: Path) -> None:
    subprocess.run([sys.executable, "-c", _BUSY, str(seconds)], check=True)


def checkpoint(seconds: float, out: Path) -> None:
    end = time.monotonic() + seconds
    with (out / "checkpoint").open("wb") as file:
        while time.monotonic() < end:
            file.write(bytes(1 << 20))
            os.fsync(file.fileno())
            time.sleep(0.3)


def service(seconds: float, out: Path) -> None:
    """An answer over the network that is long in coming."""
    time.sleep(seconds)


class SlowOnce(Dataset[torch.Tensor]):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._seconds)
        return torch.zeros(1)


def data(seconds: float, out: Path) -> None:
    for _ in DataLoader(SlowOnce(seconds), num_workers=1):
        pass


DOING = {"evaluate": evaluate, "compile": compile, "checkpoint": checkpoint, "service": service, "data": data}


def main() -> None:
    import deadpool

    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--long-step", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--doing", choices=list(DOING), required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    pool = deadpool.join(backend="gloo")
    torch.manual_seed(1)
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters())
    job = pool.protect(model=model, optimizer=optimizer)
    for step in job.steps(args.steps):
        with step:
            if step.number == args.long_step and pool.rank == 1 and not step.dry:
                DOING[args.doing](args.seconds, args.out)
            time.sleep(STEP_S)
            model(torch.randn(4, WIDTH)).sum().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
