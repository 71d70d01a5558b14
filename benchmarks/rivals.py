"""Measures alternatives in every step: async_save of torch.distributed.checkpoint, or a blocking copy of the state.

overhead.py runs it in its own process, with the model, the steps and the device of its case `fits`. Times are wall
times with an idle device before and after, because both alternatives make the host wait. The last line is the result.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from solo_model import Marks, Solo, measure, size_for

MEMORY_BACKED = Path("/dev/shm")
WRITERS = 8  # threads of the checkpoint's writer
ASYNC_STEPS = 2  # each waits until the save before it is written


def step_s(solo: Solo, micro_batches: int, steps: int, save: Callable[[], None]) -> float:
    """Returns the mean time of a step with a `save` after it."""
    marks = Marks(solo.device)
    marks.finish()
    began = time.perf_counter()
    for _ in range(steps):
        solo.train_step(micro_batches)
        solo.update()
        save()
    marks.finish()
    return (time.perf_counter() - began) / steps


class BlockingCopy:
    """Copies the state into pinned memory while training waits."""

    def __init__(self, solo: Solo) -> None:
        self._marks = Marks(solo.device)
        pinned = solo.device.type != "cpu"
        self._pairs = [
            (torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned), tensor)
            for tensor in solo.state().values()
        ]

    def __call__(self) -> None:
        for target, source in self._pairs:
            target.copy_(source, non_blocking=True)
        self._marks.finish()


class AsyncSave:
    """Saves one checkpoint at a time: the last one must be written before the next one begins."""

    def __init__(self, solo: Solo, folder: Path) -> None:
        self._solo, self._folder = solo, folder
        self._last: concurrent.futures.Future[Any] | None = None

    def __call__(self) -> None:
        self.wait()
        writer = checkpoint.FileSystemWriter(
            self._folder, single_file_per_rank=False, sync_files=False, thread_count=WRITERS
        )
        saving: Any = checkpoint.async_save(dict(self._solo.state()), storage_writer=writer)
        self._last = getattr(saving, "upload_completion", saving)

    def wait(self) -> None:
        if self._last is not None:
            self._last.result()


def free_pinned_memory() -> None:
    """Frees the pinned memory that torch caches, which is as large as the state."""
    for name in ("_host_emptyCache", "_accelerator_emptyHostCache"):
        if torch.cuda.is_available() and hasattr(torch._C, name):
            getattr(torch._C, name)()
            return


def storage_for(total_bytes: int) -> Path:
    """Returns a folder for two checkpoints of this size: in memory, or on disk if there is too little memory."""
    roomy = MEMORY_BACKED.is_dir() and shutil.disk_usage(MEMORY_BACKED).free > 2 * total_bytes
    return MEMORY_BACKED if roomy else Path(tempfile.gettempdir())


def say(text: str) -> None:
    print(f"rivals: {text}", file=sys.stderr, flush=True)


def compare(solo: Solo, length: float, steps: int) -> dict[str, Any]:
    speeds = measure(solo)
    count = speeds.micro_batches(length * solo.state_bytes / speeds.plain_bytes_per_s)
    plain = [step_s(solo, count, steps, lambda: None)]
    say(f"plain step {plain[0]:.3f} s")
    blocking = BlockingCopy(solo)
    blocking_s = step_s(solo, count, steps, blocking)
    del blocking
    free_pinned_memory()
    say(f"with a blocking copy {blocking_s:.3f} s")
    storage = storage_for(solo.state_bytes)
    with tempfile.TemporaryDirectory(prefix="deadpool-rivals-", dir=storage) as folder:
        saving = AsyncSave(solo, Path(folder))
        step_s(solo, count, 1, saving)  # the first save allocates the memory for its copy
        async_s = step_s(solo, count, ASYNC_STEPS, saving)
        saving.wait()
    say(f"with async_save {async_s:.3f} s")
    plain.append(step_s(solo, count, steps, lambda: None))
    step = statistics.mean(plain)
    return {
        "plain_step_s": plain,
        "blocking_copy_ratio": blocking_s / step,
        "async_save_ratio": async_s / step,
        "async_save_storage": str(storage),
        "steps": steps,
        "micro_batches": count,
        "state_bytes": solo.state_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--parameters", type=float, default=2e6)
    parser.add_argument("--length", type=float, default=2.0, help="length of a step, in plain copies of the state")
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    solo = Solo(size_for(args.parameters), torch.device(args.device))
    result = compare(solo, args.length, args.steps)
    dist.destroy_process_group()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
