"""What --parked-state free frees on a device, and what it adds to a recovery: the memory is allocated before the load.

    python benchmarks/parked_state.py --sizes 2 8 32 --runs 5 --json parked_state.json

A parked trainer's state of so many GB (bf16 parameters, fp32 master weights and moments) is freed, allocated again and
restored from a slot in registered memory, in turn with a restore of a state that was kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "gpu"))

GB = 1_000_000_000


def measure(size_gb: float, runs: int) -> dict[str, Any]:
    from cuda_job import CudaJob, registered_slot

    width = int(size_gb * GB / 14 / 128)
    job = CudaJob("master", width=width)
    job.train(2)
    job.optimizer.zero_grad()
    torch.cuda.synchronize()
    kept, freeing, allocating, loading, again = [], [], [], [], []
    found: dict[str, Any] = {}
    with registered_slot(job.state) as slot:
        assert slot.open(job.state).advance(lambda: False)
        digest = job.state.digest()
        for _ in range(runs):
            kept.append(timed(lambda: slot.restore(job.state)))
            torch.cuda.empty_cache()
            before = torch.cuda.mem_get_info()[0]
            began = time.perf_counter()
            freed = job.state.free_parked()
            freeing.append(time.perf_counter() - began)
            found = {"state_bytes": freed.nbytes, "given_back_bytes": torch.cuda.mem_get_info()[0] - before}
            allocating.append(timed(freed.allocate))
            loading.append(timed(lambda: slot.restore(job.state)))
            assert job.state.digest() == digest, "the restored state differs"
            again.append(allocating[-1] + loading[-1] - kept[-1])
    return {
        "size_gb": size_gb,
        **found,
        "kept_restore_s": worst(kept),
        "free_s": worst(freeing),
        "allocate_s": worst(allocating),
        "freed_restore_s": worst(loading),
        "added_s": worst(again),
    }


def timed(act: Any) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    act()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def worst(values: list[float]) -> dict[str, float]:
    return {"median": round(sorted(values)[len(values) // 2], 5), "worst": round(max(values), 5)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=float, nargs="+", default=[2.0, 8.0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = [measure(size, args.runs) for size in args.sizes]
    text = json.dumps(
        {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "results": results}, indent=1
    )
    print(text)
    if args.json:
        args.json.write_text(text)


if __name__ == "__main__":
    main()
