"""The training script of the demo, the benchmarks and the end-to-end tests. It runs under `deadpool run` and torchrun.

Each rank writes a file into the folder --out: one line for every step that it did, also for a step that was done again,
and a line with the final digest of its state.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist

import deadpool
from deadpool.demo.gpt import RandomBatches, Size
from deadpool_lab.workload import layouts
from deadpool_lab.workload.device import BACKENDS, Epochs, WeightAverage, make_loader, take_device
from deadpool_lab.workload.layouts.assembly import Assembly, LayoutOptions


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layout", choices=layouts.NAMES, default="fsdp2")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--stop", type=Path, help="a file that may appear, with the number of the step to stop before")
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--batch", type=int, default=2, help="sequences per rank")
    parser.add_argument("--alternate", type=int, default=0, help="switch protection off and on every N steps")
    parser.add_argument("--clip", type=float, default=0.0, help="clip gradients to this global norm")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--checkpoint", action="store_true", help="recompute activations in backward")
    parser.add_argument("--optimizer", choices=("fused", "foreach", "capturable"), default="fused")
    parser.add_argument("--ema", type=float, default=0.0, help="keep a moving average of the weights with this decay")
    parser.add_argument("--loader", choices=("synthetic", "stateful"), default="synthetic")
    parser.add_argument(
        "--compile",
        nargs="?",
        const="inductor",
        metavar="BACKEND",
        help="compile the blocks with this backend of torch.compile",
    )
    parser.add_argument("--device", choices=tuple(BACKENDS), default="cpu")
    parser.add_argument("--backend", metavar="NAME", help="by default gloo on cpu, nccl on cuda")
    parser.add_argument("--journal", action="store_true", help="log the loss of every step of every rank")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=2048)
    return parser.parse_args()


def options_of(args: argparse.Namespace, device: torch.device) -> LayoutOptions:
    size = Size(
        layers=args.layers,
        width=args.width,
        sequence=args.sequence,
        vocabulary=args.vocabulary,
        dropout=args.dropout,
        checkpoint=args.checkpoint,
    )
    return LayoutOptions(
        size=size, batch=args.batch, optimizer=args.optimizer, compile_backend=args.compile, device=device
    )


def open_data(loader: str, size: Size, built: Assembly) -> tuple[Any, Any]:
    """Returns the source of batches, and the object that has its position, which is protected."""
    if loader == "synthetic":
        batches = RandomBatches(size, built.data_rank, built.sequences)
        return batches, batches
    source = make_loader(size, sequences=built.sequences, data_rank=built.data_rank, data_size=built.data_size)
    return Epochs(source), source


def is_over(stop: Path, number: int) -> bool:
    """The file must name a step that no rank has reached yet, so that all ranks stop before the same step."""
    return stop.exists() and number >= int(stop.read_text() or number + 1)


def note(file: TextIO, **values: object) -> None:
    file.write(json.dumps(values) + "\n")
    file.flush()


def clocks() -> dict[str, float]:
    """Returns the wall-clock time, and the CPU time of all threads of this process."""
    return {"ended": time.time(), "cpu_s": time.process_time()}


def main() -> None:
    args = arguments()
    device = take_device(args.device)
    pool = deadpool.join(backend=args.backend or BACKENDS[args.device])
    options = options_of(args, device)
    built = layouts.build(args.layout, options)
    optimizer = built.optimizer
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    average = WeightAverage(built.model.parameters(), args.ema) if args.ema else None
    torch.manual_seed(1 + pool.rank)
    batches, data = open_data(args.loader, options.size, built)
    further: dict[str, Any] = {"average": average} if average is not None else {}
    job = pool.protect(model=built.model, optimizer=optimizer, scheduler=scheduler, data=data, **further)

    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
        for step in job.steps(args.steps):
            if args.stop is not None and is_over(args.stop, step.number):
                break
            if args.alternate:
                job.enabled = step.number // args.alternate % 2 == 0
            with step:
                began = time.time()
                loss = built.train_step(*(each.to(device) for each in next(batches)))
                if args.clip:
                    built.clip(args.clip)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                if average is not None:
                    average.update()
                if args.journal:
                    job.log(step, loss=loss)
                if not step.dry:
                    note(file, step=step.number, loss=float(loss).hex(), began=began, **clocks())
        note(file, digest=job.digest())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
