"""Makes NCCL backends, connects them after a recovery, and aborts them side by side.

NCCL connects when a group is first used. Plain torch leaves it at that, and so do we, except after a recovery: groups
that were in use are connected again before training goes on, in a thread that can be given up, because a communicator
that waits for a peer that never comes cannot be aborted.

What an abort leaves behind is not an error: kernels that were cut off end as if they were done, and what they had to
deliver is garbage. Nobody here can tell; the abort flag is looked at wherever garbage could pass for a result.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from deadpool.errors import ConfigError

ProcessGroupNCCL: Any = getattr(_distributed_c10d, "ProcessGroupNCCL", None)  # None: this torch was built without

ABORT_S = 20.0
"""For all communicators of a process to be gone. Takes a tenth of a second to one where all is well."""

_ENVIRONMENT = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # else torch's watchdog ends the process when a peer is lost
    "TORCH_NCCL_ENABLE_MONITORING": "0",  # else it ends a process whose abort takes long
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}


def prepare_environment() -> None:
    """Before the first group is made. ConfigError where the user wants something that would defeat recovery."""
    if ProcessGroupNCCL is None or not torch.cuda.is_available():
        missing = "has no NCCL" if ProcessGroupNCCL is None else "finds no GPU"
        raise ConfigError(f"backend='nccl' cannot be used: torch {torch.__version__} {missing} here; 'gloo' would work")
    for name, needed in _ENVIRONMENT.items():
        given = os.environ.setdefault(name, needed)
        if given != needed:
            raise ConfigError(
                f"{name}={given!r} cannot be used: torch would end processes that are to survive; {needed!r} or unset "
                "would be accepted"
            )


def make(store: dist.Store, rank: int, size: int, options: Any) -> Any:
    """Talks to nobody yet."""
    return ProcessGroupNCCL(store, rank, size, options)


def unsplit(options: Any) -> Any:
    """The communicator that a group was split off is gone after a recovery: it is made by itself then."""
    if getattr(options, "split_from", None) is not None:
        options.split_from = None
    return options


def make_alone(options: Any) -> Any:
    """For a process that rehearses: lies beneath a fake backend, and is never connected."""
    return ProcessGroupNCCL(dist.HashStore(), 0, 1, options)


def warm_up() -> None:
    """What NCCL does once per process, in most of a second: a spare has done it before it is needed."""
    alone = make_alone(ProcessGroupNCCL.Options())
    connect([alone], torch.cuda.current_device())
    alone.abort()


def was_used(backend: Any) -> bool:
    """Whether a collective was enqueued. The same answer on all members: they enqueue the same ones."""
    return isinstance(backend, ProcessGroupNCCL) and backend._get_sequence_number_for_group() > 0


def connect(backends: Sequence[Any], device: int) -> None:
    """By one tiny collective each, so that everything is set up that the first real one would set up.

    Not by eager_connect_single_device: it would change how point-to-point operations are carried out from then on.
    """
    torch.cuda.set_device(device)  # the current device is a thread's own
    works = [backend.allreduce([torch.zeros(1, device="cuda")]) for backend in backends]
    for work in works:
        work.wait()
    torch.cuda.current_stream().synchronize()


def close_group_call(backend: Any) -> None:
    """An exception between the beginning and the end of a batch leaves NCCL collecting, on this thread, for ever."""
    if isinstance(backend, ProcessGroupNCCL):
        with contextlib.suppress(RuntimeError):  # what it had collected was for communicators that are gone
            backend._group_end()


class Teardown:
    """The abort of several backends. They go side by side: one that waits for another would wait for ever."""

    def __init__(self, backends: Sequence[Any], on_done: Callable[[float], None], on_hang: Callable[[], None]) -> None:
        self._backends, self._on_done, self._on_hang = tuple(backends), on_done, on_hang

    def start(self) -> None:
        """Returns at once. `on_hang`: an abort did not come back, and never will."""
        threads = [
            threading.Thread(target=backend.abort, name="deadpool-abort", daemon=True) for backend in self._backends
        ]
        for thread in threads:
            thread.start()
        threading.Thread(target=self._watch, args=(threads,), name="deadpool-teardown", daemon=True).start()

    def _watch(self, threads: list[threading.Thread]) -> None:
        began = time.monotonic()
        for thread in threads:
            thread.join(max(0.0, began + ABORT_S - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            self._on_hang()
        else:
            self._on_done(time.monotonic() - began)
