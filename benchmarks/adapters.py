"""Measures what protection costs per step in each training framework, on the CPU, while nothing fails.

    python benchmarks/adapters.py --repeats 5 --json out/adapters.json
    python benchmarks/adapters.py --framework lightning --framework "own loop"

Runs the same script under torchrun and under DeadPool, alternately. A run's step is the median over its steps, from the
end of one to the end of the next: wall time, and CPU time of the trainer's process. A ratio is the median over pairs of
runs, protected divided by plain, with the lowest and the highest pair. Validation and checkpoints are in the scripts
too, but a median does not see them. On a machine whose cores are all busy the agents' work shows in the wall time.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from output import give_out

from deadpool.config.job_config import JobConfig
from deadpool.control.launch.folder_lock import temporary_folder
from deadpool.demo.trial import Results
from deadpool_lab.workload.run import SCRIPT, WorkloadTrial

SCRIPTS = Path(__file__).parents[1] / "tests" / "e2e"
RANKS, WARM_UP_STEPS, LIMIT_S = 2, 3, 300.0


@dataclass(frozen=True, slots=True)
class Framework:
    """`package` has to be installed. The script takes --out, and notes when each step has `ended`."""

    package: str
    script: Path
    arguments: tuple[str, ...] = ()


FRAMEWORKS = {
    "own loop": Framework("torch", SCRIPT, ("--layout", "ddp", "--steps", "40")),
    "transformers": Framework("transformers", SCRIPTS / "trainer_script.py", ("--scale", "16")),
    "lightning": Framework("lightning", SCRIPTS / "lightning_script.py", ("--scale", "2000")),
    "torchtitan": Framework("torchtitan", SCRIPTS / "torchtitan_script.py", ("--steps", "20")),
    "deepspeed": Framework("deepspeed", SCRIPTS / "deepspeed_script.py", ("--steps", "40", "--stage", "2")),
    "megatron": Framework(
        "megatron.core", SCRIPTS / "megatron_script.py", ("--steps", "40", "--width", "128", "--distributed-optimizer")
    ),
}


@dataclass(frozen=True, slots=True)
class StepCost:
    wall_s: float
    cpu_s: float


def step_cost(results: Results) -> StepCost:
    """Of rank 0."""
    steps = results.steps[0][WARM_UP_STEPS:]
    if not steps[0].ended or not steps[0].cpu_s:
        raise SystemExit("this script does not note when its steps have ended, or what they have used")
    pairs = list(itertools.pairwise(steps))
    return StepCost(
        statistics.median(later.ended - earlier.ended for earlier, later in pairs),
        statistics.median(later.cpu_s - earlier.cpu_s for earlier, later in pairs),
    )


def run_plain(framework: Framework, folder: Path) -> StepCost:
    out = folder / "out"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    subprocess.run(
        [*torchrun, str(framework.script), "--out", str(out), *framework.arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        timeout=LIMIT_S,
    )
    return step_cost(Results.read(out))


def run_protected(framework: Framework, folder: Path) -> StepCost:
    config = JobConfig(nodes=RANKS)
    trial = WorkloadTrial(config, list(framework.arguments), folder, deadline_s=LIMIT_S, script=framework.script)
    return step_cost(trial.run())


def measure(name: str, repeats: int) -> dict[str, Any]:
    pairs = []
    for repeat in range(repeats):
        with temporary_folder("deadpool-plain-") as plain, temporary_folder("deadpool-protected-") as protected:
            pairs.append((run_plain(FRAMEWORKS[name], plain), run_protected(FRAMEWORKS[name], protected)))
        plain_run, protected_run = pairs[-1]
        wall, cpu = protected_run.wall_s / plain_run.wall_s, protected_run.cpu_s / plain_run.cpu_s
        print(f"{name} {repeat + 1} of {repeats}: wall {wall:.3f}, CPU {cpu:.3f}", flush=True)
    return {
        "wall": spread([protected.wall_s / plain.wall_s for plain, protected in pairs]),
        "cpu": spread([protected.cpu_s / plain.cpu_s for plain, protected in pairs]),
        "plain_step_ms": 1000 * statistics.median(plain.wall_s for plain, _ in pairs),
        "plain_cpu_ms": 1000 * statistics.median(plain.cpu_s for plain, _ in pairs),
        "added_cpu_ms": 1000 * statistics.median(protected.cpu_s - plain.cpu_s for plain, protected in pairs),
        "repeats": repeats,
    }


def spread(ratios: list[float]) -> dict[str, float]:
    return {"ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of the package that it is a part of
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=list(FRAMEWORKS), action="append", help="repeatable; by default all")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    summary = {}
    for name in args.framework or FRAMEWORKS:
        if not is_installed(FRAMEWORKS[name].package):
            print(f"{name} is not installed", flush=True)
            continue
        summary[name] = measure(name, args.repeats)
    give_out(summary, args.json)


if __name__ == "__main__":
    main()
