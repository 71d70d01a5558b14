"""Measures what protection costs per step in each training framework, on the CPU, while nothing fails.

    python benchmarks/adapters.py --repeats 5 --json out/adapters.json
    python benchmarks/adapters.py --framework lightning --framework "own loop"

Runs the same script under torchrun and under DeadPool, alternately. A run's step time is the median over its steps,
from the end of one to the end of the next. `ratio` is the median, over pairs of runs, of protected divided by plain
step time, with the lowest and the highest pair. `added_ms` is their difference. Validation and checkpoints are in the
scripts too, but a median does not see them.
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

from deadpool.config import JobConfig
from deadpool.control.temporary_folder import temporary_folder
from deadpool.workload.harness import SCRIPT, WorkloadTrial
from deadpool.workload.results import Results

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
    # one line per framework whose script is in tests/e2e
}


def step_s(results: Results) -> float:
    """Returns the median step time of rank 0."""
    ends = [each.ended for each in results.steps[0]][WARM_UP_STEPS:]
    if not ends[0]:
        raise SystemExit("this script does not note when its steps have ended")
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(ends))


def run_plain(framework: Framework, folder: Path) -> float:
    out = folder / "out"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    subprocess.run(
        [*torchrun, str(framework.script), "--out", str(out), *framework.arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        timeout=LIMIT_S,
    )
    return step_s(Results.read(out))


def run_protected(framework: Framework, folder: Path) -> float:
    config = JobConfig(nodes=RANKS)
    trial = WorkloadTrial(config, list(framework.arguments), folder, deadline_s=LIMIT_S, script=framework.script)
    return step_s(trial.run())


def measure(name: str, repeats: int) -> dict[str, Any]:
    pairs = []
    for repeat in range(repeats):
        with temporary_folder("deadpool-plain-") as plain, temporary_folder("deadpool-protected-") as protected:
            pairs.append((run_plain(FRAMEWORKS[name], plain), run_protected(FRAMEWORKS[name], protected)))
        print(f"{name} {repeat + 1} of {repeats}: {pairs[-1][1] / pairs[-1][0]:.3f}", flush=True)
    ratios = sorted(protected / plain for plain, protected in pairs)
    return {
        "ratio": statistics.median(ratios),
        "lowest": ratios[0],
        "highest": ratios[-1],
        "plain_step_ms": 1000 * statistics.median(plain for plain, _ in pairs),
        "added_ms": 1000 * statistics.median(protected - plain for plain, protected in pairs),
        "repeats": repeats,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=list(FRAMEWORKS), action="append", help="repeatable; by default all")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    summary = {}
    for name in args.framework or FRAMEWORKS:
        if importlib.util.find_spec(FRAMEWORKS[name].package) is None:
            print(f"{name} is not installed", flush=True)
            continue
        summary[name] = measure(name, args.repeats)
    give_out(summary, args.json)


if __name__ == "__main__":
    main()
