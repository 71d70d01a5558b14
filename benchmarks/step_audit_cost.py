"""Measures what an audit of a step costs: stretches of N steps with one audit and without any alternate in one run.

    python benchmarks/step_audit_cost.py --json out/step_audit_cost.json              # DDP and FSDP2, two nodes, CPU
    python benchmarks/step_audit_cost.py --layout ddp --every 20 --pairs 4 --batch 8  # unknown options: of the workload
    python benchmarks/step_audit_cost.py --digests-only --device cuda --json out/digests.json
    LD_PRELOAD=libnccl.so.2 NCCL_MULTI_RANK_GPU_ENABLE=1 python benchmarks/step_audit_cost.py --device cuda

`share` is the time of stretches with an audit divided by that of their neighbours without one, minus 1: the median,
with a 95 % bootstrap interval. `step_and_digests` is what the step that is computed again and the digests make of it:
one step and the digests of a rank's state (four times) and gradients (own and reduced, twice), by the rate measured
here, in N steps. The rest is the recovery without a loss (`phases_s`) and the wait for the version before the step. An
audit is asked for as `deadpool job audit --step` does, and is the same as one of `--audit-every N`.

`digests` has the rate at which one tensor of each size is digested where it lies, waits included, and many small ones;
on a device beside the rate at which it only reads (a sum of 64-bit integers). With a device it is a minute or less.
The length of steps follows from --batch: about a second with two ranks on two cores is what the rest is meant for.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from output import give_out
from pairs import interval_95, neighbour_ratios

from deadpool.cli.job_client import ask
from deadpool.config.job_config import JobConfig
from deadpool.control.launch.folder_lock import temporary_folder
from deadpool.demo.gpt import GPT, Size
from deadpool.demo.trial import Results
from deadpool.errors import ConfigError, JobFailed
from deadpool.events.story import PHASES
from deadpool.snapshot.state.state_parts import _bulk
from deadpool_lab.workload.run import WorkloadTrial

STEP_LIMIT = 1_000_000  # never reached
WARM_UP = 6  # steps before the first stretch
LAST_STEPS = 5  # behind the last stretch: no rank has come to the stop when it reads of it
DEADLINE_S = 1800.0
SIZES = {"cpu": (1 << 20, 1 << 26, 1 << 29), "cuda": (1 << 20, 1 << 26, 1 << 30, 4 << 30)}
SMALL_BYTES, SMALL_COUNT = 4 << 20, 128
REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", choices=("ddp", "fsdp2"), action="append", help="repeatable; by default both")
    parser.add_argument("--every", type=int, default=20, help="N, the steps of a stretch")
    parser.add_argument("--pairs", type=int, default=4, help="stretches with an audit")
    parser.add_argument("--digests-only", action="store_true", help="run no job")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path)
    args, further = parser.parse_known_args()
    found: dict[str, Any] = {"digests": digest_rates(args.device)}
    if not args.digests_only:
        rate = max(each["gb_s"] for each in found["digests"]["one_tensor"].values())
        for layout in args.layout or ("ddp", "fsdp2"):
            print(f"{layout}: {2 * args.pairs + 1} stretches of {args.every} steps", flush=True)
            found[layout] = measure(layout, args, further, rate)
    give_out(found, args.json)


# --- digests ----------------------------------------------------------------------------------------------------------


def digest_rates(device: str) -> dict[str, Any]:
    one = {f"{size >> 20} MiB": _rate([_data(size, device)]) for size in SIZES[device]}
    small = _rate([_data(SMALL_BYTES, device) for _ in range(SMALL_COUNT)])
    found: dict[str, Any] = {"one_tensor": one, f"{SMALL_COUNT} of {SMALL_BYTES >> 20} MiB": small}
    if device == "cuda":
        largest = _data(SIZES[device][-1], device).view(torch.int64)
        reads_s = _least_s(lambda: largest.sum().item())
        found["reads_gb_s"] = largest.nbytes / reads_s / 1e9
        found["share_of_reads"] = max(each["gb_s"] for each in one.values()) / found["reads_gb_s"]
    return found


def _data(nbytes: int, device: str) -> torch.Tensor:
    return torch.randint(-100, 100, (nbytes,), dtype=torch.int8, device=device).view(torch.float32)


def _rate(tensors: list[torch.Tensor]) -> dict[str, float]:
    named = [(str(number), each) for number, each in enumerate(tensors)]
    seconds = _least_s(lambda: list(_bulk("parameter", named)))
    return {"seconds": seconds, "gb_s": sum(each.nbytes for each in tensors) / seconds / 1e9}


def _least_s(work: Callable[[], object]) -> float:
    """What else the machine does only adds to it. `work` waits for its result."""
    work()
    took = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return min(took)


# --- a job ------------------------------------------------------------------------------------------------------------


def measure(layout: str, args: argparse.Namespace, further: list[str], rate_gb_s: float) -> dict[str, Any]:
    every, stretches = args.every, 2 * args.pairs + 1
    with temporary_folder("deadpool-benchmark-") as folder:
        stop = folder / "stop"
        words = ["--layout", layout, "--device", args.device, "--steps", str(STEP_LIMIT), "--stop", str(stop)]
        config = JobConfig(nodes=2, slots=4, overhead_budget=0.0, rehearse_recovery=False).checked()
        trial = WorkloadTrial(config, words + further, folder / "job", deadline_s=DEADLINE_S)
        begins: list[int] = []

        def alternate(_: object) -> None:
            trial.await_event("protected")
            first = trial.results().newest_step() + WARM_UP
            begins.extend(first + every * number for number in range(stretches + 1))
            for number in range(stretches):
                trial.await_step(begins[number], DEADLINE_S)
                if number % 2:
                    _audit(trial)
            stop.write_text(str(begins[-1] + LAST_STEPS))

        results = trial.run(alternate)
        return _report(trial, results, begins, _digested_bytes(layout, further) / rate_gb_s / 1e9)


def _audit(trial: WorkloadTrial) -> None:
    """Its verdict comes within the stretch."""
    before = _verdicts(trial)
    trial.await_true(lambda: _is_asked(trial), "an audit can be asked for")
    trial.await_true(lambda: _verdicts(trial) > before, "the verdict")


def _is_asked(trial: WorkloadTrial) -> bool:
    try:
        ask(trial.job.run_dir, "step_audit")
    except ConfigError:
        return False  # ranks have not come back from the audit before
    return True


def _verdicts(trial: WorkloadTrial) -> int:
    return sum(event["what"] == "step_audit_passed" for event in trial.events())


def _report(trial: WorkloadTrial, results: Results, begins: list[int], digests_s: float) -> dict[str, Any]:
    ended = {each.step: each.ended for each in results.steps[0]}  # the last time, of what was computed twice
    every = begins[1] - begins[0]
    seconds = [ended[later] - ended[earlier] for earlier, later in itertools.pairwise(begins)]
    audited = [number % 2 == 1 for number in range(len(seconds))]
    plain = [each for each, is_audited in zip(seconds, audited, strict=True) if not is_audited]
    step_s = statistics.median(plain) / every
    shares = [ratio - 1 for ratio in neighbour_ratios(audited, seconds)]
    found = [each for each in trial.recoveries() if each.fault.get("kind") == "audit"]
    if len(found) != sum(audited):
        raise JobFailed(f"{sum(audited)} audits were asked for, and {len(found)} steps computed again")
    return {
        "steps_per_stretch": every,
        "step_s": step_s,
        "share": statistics.median(shares),
        "share_interval": interval_95(shares),
        "step_and_digests": (step_s + digests_s) / (every * step_s),
        "audit_s": statistics.median(shares) * every * step_s,
        "digests_s": digests_s,
        "phases_s": {name: statistics.median(each.phases_s[name] for each in found) for name in PHASES},
        "stretches_s": seconds,
    }


def _digested_bytes(layout: str, further: list[str]) -> float:
    """Of one rank, in one audit: parameters and two moments four times, own gradients and reduced ones twice. The own
    gradients of FSDP2 are those of whole parameters."""
    parser = argparse.ArgumentParser()
    for name, default in (("layers", 6), ("width", 256), ("sequence", 128), ("vocabulary", 2048)):
        parser.add_argument(f"--{name}", type=int, default=default)
    size = Size(**vars(parser.parse_known_args(further)[0]))
    with torch.device("meta"):
        numbers = sum(each.numel() for each in GPT(size).parameters())
    here = numbers / 2 if layout == "fsdp2" else numbers
    return 4.0 * (4 * 3 * here + 2 * numbers + 2 * here)


if __name__ == "__main__":
    main()
