"""What durable checkpoints cost a job on this machine: step times while one is written, against those of the same run
while none is.

    python benchmarks/durable.py --nodes 1 --ranks 2 --steps 400 --every 20s

It prints the ratio during a write, and what follows from it for one checkpoint every half hour. Steps and writes are
matched by wall-clock time: both come from this one machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from deadpool.config.job_config import JobConfig
from deadpool.demo.trial import StepTime
from deadpool_lab.workload.run import WorkloadTrial

SKIPPED = 10  # first steps: segments are allocated, optimizer state appears
USUAL_S = 1800.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2, help="per node")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", default="20s")
    parser.add_argument("--bandwidth", default="")
    parser.add_argument("--width", type=int, default=256)
    return parser.parse_args()


def writes(events: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """From and until when a checkpoint was written."""
    begun = [event["t"] for event in events if event["what"] == "checkpoint_begun"]
    done = [event["t"] for event in events if event["what"] in ("checkpoint_written", "checkpoint_failed")]
    return list(zip(begun, done, strict=False))


def measure(steps: list[StepTime], spans: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Times of steps during writes, and of those between."""
    during, between = [], []
    for before, step in zip(steps[SKIPPED:], steps[SKIPPED + 1 :], strict=False):
        overlaps = any(begun < step.ended and before.ended < done for begun, done in spans)
        (during if overlaps else between).append(step.ended - before.ended)
    return during, between


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="deadpool-durable-") as folder:
        config = JobConfig(
            nodes=args.nodes,
            nproc_per_node=args.ranks,
            holders=min(1, args.nodes - 1),
            durable=str(Path(folder) / "checkpoints"),
            durable_every=args.every,
            durable_bandwidth=args.bandwidth,
        ).checked()
        words = ["--layout", "ddp", "--steps", str(args.steps), "--width", str(args.width)]
        trial = WorkloadTrial(config, words, Path(folder), deadline_s=3600.0)
        results = trial.run()
        spans = writes(trial.events())
        written = [event for event in trial.events() if event["what"] == "checkpoint_written"]
    during, between = measure(results.steps[0], spans)
    if len(during) < 5 or len(between) < 5:
        raise SystemExit(f"too few steps to compare ({len(during)} and {len(between)}): give more --steps")
    ratio = statistics.mean(during) / statistics.mean(between)
    write_s = statistics.mean(event["seconds"] for event in written)
    figures = {
        "checkpoints": len(written),
        "bytes": written[0]["bytes"],
        "write_s": round(write_s, 2),
        "step_s_between": round(statistics.mean(between), 4),
        "step_s_during": round(statistics.mean(during), 4),
        "ratio_during": round(ratio, 4),
        "ratio_every_30m": round(1 + (ratio - 1) * min(1.0, write_s / USUAL_S), 5),
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
