"""What --parked-state free adds to a recovery on a device: state is freed, allocated again, then loaded.

    python benchmarks/freed_storage.py 2 8 24

It needs torch only. A state of so many GB (bf16 parameters, fp32 master weights and two moments, 4 Mi elements each) is
treated as snapshot/state/freed_state.py does. Printed are the median and the worst of five runs in seconds; `added` is
allocating and loading, less loading into a state that was kept.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch

GB = 1_000_000_000
ELEMENTS = 4 << 20


def timed(act: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    act()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(size_gb: float) -> None:
    tensors = []
    for _ in range(int(size_gb * GB / 14 / ELEMENTS)):
        tensors.append(torch.randn(ELEMENTS, device="cuda").bfloat16())
        tensors += [torch.randn(ELEMENTS, device="cuda") for _ in range(3)]
    pinned = [torch.empty_like(each, device="cpu", pin_memory=True).copy_(each) for each in tensors]
    sizes = [(each.untyped_storage(), each.untyped_storage().nbytes()) for each in tensors]

    def load() -> None:
        for target, source in zip(tensors, pinned, strict=True):
            target.copy_(source, non_blocking=True)

    def free() -> None:
        for storage, _ in sizes:
            storage.resize_(0)
        torch.cuda.empty_cache()

    def allocate() -> None:
        for storage, nbytes in sizes:
            storage.resize_(nbytes)

    load()
    found: dict[str, list[float]] = {name: [] for name in ("load_kept", "free", "allocate", "load_freed", "added")}
    given_back = 0
    for _ in range(5):
        found["load_kept"].append(timed(load))
        torch.cuda.empty_cache()
        before = torch.cuda.mem_get_info()[0]
        found["free"].append(timed(free))
        given_back = torch.cuda.mem_get_info()[0] - before
        found["allocate"].append(timed(allocate))
        found["load_freed"].append(timed(load))
        found["added"].append(found["allocate"][-1] + found["load_freed"][-1] - found["load_kept"][-1])
        assert all(torch.equal(one.cpu(), other) for one, other in zip(tensors[:8], pinned[:8], strict=True))
    seconds = {name: [round(sorted(each)[2], 5), round(max(each), 5)] for name, each in found.items()}
    facts = {"gb": size_gb, "state_bytes": sum(nbytes for _, nbytes in sizes), "given_back_bytes": given_back}
    print(json.dumps({**facts, **seconds}), flush=True)


if __name__ == "__main__":
    print(torch.__version__, torch.cuda.get_device_name())
    for text in sys.argv[1:]:
        measure(float(text))
