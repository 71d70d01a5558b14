"""Measures what protection costs while nothing fails. Protected and unprotected stretches of steps alternate in a run.

    python benchmarks/overhead.py --json out/overhead.json                       # four ranks on the CPU
    python benchmarks/overhead.py --device cuda --case all --json out/overhead.json

With --device cuda, or with --case, one rank trains a GPT of --parameters in bf16, with master weights and moments in
fp32 (12 bytes more per parameter), and a second node holds its copies. A step's time is measured between two CUDA
events. The length of steps in each case is relative to a plain copy of the whole state into pinned memory:

    fits        a step takes twice as long as the copy, and the whole state is protected
    fits-local  the same without a second node that holds copies, so that every step can be captured
    short       a step takes half as long as the copy
    shard       a step takes as long as the copy, and 1/8 of parameters and optimizer state is protected, as on one rank
                of 8-way ZeRO. The other 7/8 are trained unprotected.
    shard-long  the same with steps that are four times as long
    shard-launch
                shard with micro-batches of 2 sequences instead of 8: launching their kernels takes as long as running
                them, so whatever slows the host down shows
    shard-local shard without a second node that holds copies
    rivals      measures alternatives with the model and steps of `fits`: torch.distributed.checkpoint.async_save in
                every step to memory-backed storage, and a blocking copy into pinned memory in every step

If whole states are replicated, which takes many steps, stretches are three times as long and half as many. `ratio` is
protected divided by unprotected step time: the median over stretches, each compared with its neighbours, with a 95 %
bootstrap interval. `rank_0.stall_share` is how long the optimizer waited for captures, measured on the device.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from output import give_out

CASES = ("fits", "fits-local", "short", "shard", "shard-long", "shard-launch", "shard-local", "rivals")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--case", choices=(*CASES, "all"), action="append", help="repeatable")
    parser.add_argument("--parameters", type=float, help="size of the model; by default 1.4e9 on cuda, 2e6 on the CPU")
    parser.add_argument(
        "--slots", type=int, default=0, help="snapshots per side, each as large as the state; 0: as by default"
    )
    parser.add_argument("--budget", type=float, help="overhead budget, as a share of the step time; 0 means no limit")
    parser.add_argument(
        "--layout", choices=("fsdp2", "ddp", "plain"), default="fsdp2", help="layout of the four CPU ranks"
    )
    parser.add_argument("--stretch", type=int, help="steps per stretch; by default 6, with cases 5")
    parser.add_argument("--stretches", type=int, help="number of stretches; by default 24, with cases 14")
    parser.add_argument(
        "--limit-s", type=float, default=600.0, help="time limit of one job; it reports what it has measured by then"
    )
    parser.add_argument("--bulk-cpus", default="", help="CPUs of the threads that hash and move copies, as in 0-3,8")
    parser.add_argument("--trace", type=int, default=0, metavar="STEPS", help="trace so many steps of each kind (cuda)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    give_out(measure(args), args.json)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    if args.device == "cpu" and args.case is None:
        import overhead_ranks

        return overhead_ranks.measure(args.layout, args.stretch or 6, args.stretches or 24)
    import overhead_solo

    parameters = args.parameters or (1.4e9 if args.device == "cuda" else 2e6)
    cases = CASES if args.case is None or "all" in args.case else args.case
    plan = overhead_solo.Measurement(
        device=args.device,
        parameters=parameters,
        slots=args.slots,
        budget=args.budget,
        stretch=args.stretch or 5,
        stretches=args.stretches or 14,
        bulk_cpus=args.bulk_cpus,
        trace=args.trace,
        limit_s=args.limit_s,
    )
    return overhead_solo.measure(plan, cases)


if __name__ == "__main__":
    main()
