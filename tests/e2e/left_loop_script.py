"""A script that leaves its loop before all steps are done, and has something to do afterwards.

    block        by a break inside of `with step:`
    break        by a break after it
    exit         the same, and the script ends in sys.exit(0)
    evaluation   after an evaluation between two steps that says it is enough; it draws random numbers
    held         by a break, with the loop's iterator kept in a variable
    alone        by a break of rank 0 only, in its first process: the other one waits for it in the next step
    garbage      by a break after it, also in a dry step, as a script does that believes a dry step's loss

Step 50 + n of an act is in the evaluation after step n, step 100 + rank after the loop.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import small_job
import torch
import torch.distributed as dist
from acts import act

import deadpool

ENOUGH = 4
KEPT: list[Iterator[Any]] = []


def main() -> None:
    parser = small_job.make_parser()
    parser.add_argument("--way", required=True)
    args = parser.parse_args()
    pool = deadpool.join(backend="gloo")
    model = small_job.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + pool.rank)
    job = pool.protect(model=model, optimizer=optimizer)
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
        for step in kept_if(args.way == "held", job.steps(small_job.STEPS)):
            with step:
                loss = model(small_job.inputs_of(step.number, pool.rank)).square().mean()
                loss.backward()
                small_job.reduce_over(None, model)
                optimizer.step()
                optimizer.zero_grad()
                if job.enabled:
                    job.log(step, loss=loss)
                if not step.dry:
                    note = {"step": step.number, "loss": loss.item().hex(), "ended": 0.0, "cpu_s": 0.0}
                    print(json.dumps(note), file=file, flush=True)
                if args.way == "block" and step.number == ENOUGH:
                    break
            if args.way == "evaluation" and not step.dry and step.number % 2 == 0:
                act(50 + step.number)
                if is_good_enough(step.number):
                    break
            if args.way in ("break", "exit", "held") and step.number == ENOUGH:
                break
            if args.way == "alone" and (pool.rank, step.number) == (0, ENOUGH) and deadpool.first_start:
                break
            if args.way == "garbage" and (step.dry or step.number == ENOUGH):
                break
        (args.out / f"saved-by-{os.getpid()}").touch()
        act(100 + pool.rank)
        print(json.dumps({"digest": job.digest()}), file=file)
    if args.way != "alone":  # whoever is still in the loop would see that
        dist.destroy_process_group()
    if args.way == "exit":
        sys.exit(0)


def kept_if(kept: bool, steps: Iterator[Any]) -> Iterator[Any]:
    """A loop over a variable: its break does not close the iterator."""
    if kept:
        KEPT.append(steps)
    return steps


def is_good_enough(number: int) -> bool:
    """Of what it draws here the next steps' dropout depends."""
    return bool(torch.rand(()) <= 1.0) and number >= ENOUGH


if __name__ == "__main__":
    main()
