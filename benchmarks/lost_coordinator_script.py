"""The job of `benchmarks/lost_coordinator_clock.py`: each rank writes down when its steps begin and end.

Nothing of DeadPool's is in these files: they are the outside clock that its reports are compared with.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist

import deadpool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stop", type=Path, required=True, help="a file with the step before which the job ends")
    parser.add_argument("--pace-s", type=float, default=0.5, help="how long a step takes at least")
    args = parser.parse_args()
    pool = deadpool.join(backend="gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    job = pool.protect(model=model, optimizer=optimizer)
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
        for step in job.steps(100_000):
            if args.stop.exists() and step.number >= int(args.stop.read_text() or step.number + 1):
                break
            with step:
                began = time.time()
                time.sleep(args.pace_s)
                loss = model(torch.ones(4, 64)).square().mean()
                loss.backward()
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                optimizer.step()
                optimizer.zero_grad()
                if not step.dry:
                    times = {"began": began, "ended": time.time(), "cpu_s": time.process_time()}
                    file.write(json.dumps({"step": step.number, "loss": float(loss).hex(), **times}) + "\n")
                    file.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
