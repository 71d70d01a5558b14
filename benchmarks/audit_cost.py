"""What the audit of exactness costs a job: the same loop with it and without it, in turn, with default settings.

`python benchmarks/audit_cost.py` takes three pairs, of two nodes and a spare on this machine, in two minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS, SLEEP_S = 40, 0.5


def train(out: Path) -> None:
    """The script of the jobs."""
    import torch
    import torch.distributed as dist
    from torch import nn

    import deadpool

    pool = deadpool.join(backend="gloo")
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)])
    optimizer = torch.optim.AdamW(model.parameters())
    job = pool.protect(model=model, optimizer=optimizer)
    began, step_s = 0.0, [0.0]
    for step in job.steps(STEPS):
        with step:
            entered = time.monotonic()
            began = began or entered
            optimizer.zero_grad()
            model(torch.ones(4, 512)).sum().backward()
            time.sleep(SLEEP_S)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            step_s.append(time.monotonic() - entered)
    if pool.rank == 1:  # it is not the one that is replaced
        middle = sorted(step_s)[len(step_s) // 2]
        out.write_text(json.dumps({"loop_s": time.monotonic() - began, "step_s": middle}))


def run(folder: Path, audited: bool) -> dict[str, Any]:
    flag = "--rehearse-recovery" if audited else "--no-rehearse-recovery"
    command = [sys.executable, "-m", "deadpool.cli.main", "run", "--nodes", "2", "--spares", "1", flag]
    out, log = folder / "loop.json", folder / "console.log"
    command += ["--run-dir", str(folder / "run"), __file__, "--train", str(out)]
    with log.open("w") as file:
        subprocess.run(command, check=True, timeout=300, stdout=file, stderr=subprocess.STDOUT)
    assert ("audit passed" in log.read_text()) == audited, log.read_text()
    return json.loads(out.read_text())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--train", type=Path, help="be the script of a job, and write its times here")
    args = parser.parse_args()
    if args.train is not None:
        train(args.train)
        return
    for number in range(args.pairs):
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            audited, plain = run(Path(first), True), run(Path(second), False)
        cost_s, step_s = audited["loop_s"] - plain["loop_s"], plain["step_s"]
        print(
            f"pair {number + 1}: {cost_s:.2f} s for the audit, {cost_s / step_s:.1f} steps of {step_s:.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
