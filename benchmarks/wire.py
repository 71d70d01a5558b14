"""Measures how many bytes protection sends per rank and step, for one model in several layouts.

    python benchmarks/wire.py --layouts ddp fsdp2 --json out/wire.json

The job has 4 nodes with one rank each, and no faults. The numbers are those of `deadpool status`: all bytes, frames
included, of the pushes of the newest version to the rank's holders. Bytes that a replica on another node has are not
sent.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from output import give_out

from deadpool.cli.job_client import ask
from deadpool.config.job_config import JobConfig
from deadpool.control.launch.folder_lock import temporary_folder
from deadpool_lab.workload.run import WorkloadTrial

LAYOUTS = ("ddp", "hsdp", "zero1", "fsdp2")
GROWN = 2  # from this version on the optimizer's state exists and the snapshot has its final size


def measure(trial: WorkloadTrial) -> list[dict[str, Any]]:
    """Returns the numbers of every rank, once all have pushed a version of final size and have reported it."""
    found: list[dict[str, Any]] = []

    def known() -> bool:
        found[:] = ask(trial.job.run_dir, "status")["ranks"]
        return bool(found) and all((rank.get("pushed_version") or 0) >= GROWN for rank in found)

    trial.await_true(known, "numbers of every rank", 300.0)
    return found


def summarize(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    state = [rank["unique_bytes"] + rank["replica_bytes"] + rank["record_bytes"] for rank in ranks]
    return {
        "wire_bytes_per_rank_and_step": statistics.median(rank["wire_bytes_per_step"] for rank in ranks),
        "state_bytes_per_rank": statistics.median(state),
        "state_bytes_of_all_ranks": sum(state),
        **{name: statistics.median(rank[name] for rank in ranks) for name in ("unique_bytes", "replica_bytes")},
        "record_bytes": statistics.median(rank["record_bytes"] for rank in ranks),
        "each_rank": ranks,
    }


def run(layout: str, arguments: list[str], folder: Path) -> dict[str, Any]:
    figures: list[dict[str, Any]] = []
    trial = WorkloadTrial(
        JobConfig(nodes=4, overhead_budget=0.0), ["--layout", layout, *arguments], folder, deadline_s=900
    )
    trial.run(lambda running: figures.extend(measure(running)))
    return summarize(figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", nargs="+", default=LAYOUTS, help="as in deadpool_lab.workload.train --layout")
    parser.add_argument(
        "--steps", type=int, default=30, help="enough that every node reports its numbers before the end"
    )
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    size = ["--steps", str(args.steps), "--layers", str(args.layers), "--width", str(args.width)]
    summary: dict[str, Any] = {}
    with temporary_folder("deadpool-benchmark-") as folder:
        for layout in args.layouts:
            summary[layout] = run(layout, size, folder / layout)
            wire, state = (summary[layout][k] for k in ("wire_bytes_per_rank_and_step", "state_bytes_per_rank"))
            print(
                f"{layout}: {wire:,.0f} bytes sent per rank and step; a rank's state has {state:,.0f} bytes", flush=True
            )
    give_out(summary, args.json)


if __name__ == "__main__":
    main()
