"""Makes NCCL backends, connects them after a recovery, and aborts them in parallel.

torch has two classes. The older one connects when a group is first used, and this module leaves it at that, except
after a recovery: groups that were in use are connected again before training goes on. The newer one (NCCL2, which is
"nccl" since torch 2.15) connects in its constructor, and so it does after a recovery. Both happen in a thread that can
be given up, because a communicator that waits for a peer that never comes cannot be aborted.

An abort leaves no error behind: kernels that were cut off end as if they were done, and their results are garbage. This
module cannot tell garbage from a result, so the abort flag is checked wherever garbage could pass for one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from deadpool.backend import torch_versions
from deadpool.backend.torch_versions import NCCL2_WANTED, ProcessGroupNCCL, ProcessGroupNCCL2, groups_ask_backends
from deadpool.errors import ConfigError

ABORT_S = 20.0
"""Limit for all communicators of a process to be aborted. An abort that succeeds takes between 0.1 s and 1 s."""

_ENVIRONMENT = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # otherwise torch's watchdog ends the process when a peer is lost
    "TORCH_NCCL_ENABLE_MONITORING": "0",  # otherwise it ends a process whose abort takes long
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}

_TIMING = ("TORCH_NCCL_ENABLE_TIMING", "1")
"""This variable makes torch tell which collective the device is in (nccl_communicators.py), and costs one more
event for each."""


def is_usable() -> bool:
    return ProcessGroupNCCL is not None and torch.cuda.is_available()


def prepare_environment() -> None:
    """Has to be called before the first group is made. ConfigError: a variable of the user would defeat recovery."""
    if not is_usable():
        missing = "has no NCCL" if ProcessGroupNCCL is None else "finds no GPU"
        raise ConfigError(f"backend='nccl' cannot be used: torch {torch.__version__} {missing} here; 'gloo' would work")
    variable, value = NCCL2_WANTED
    if ProcessGroupNCCL2 is None and os.environ.get(variable) == value:
        raise ConfigError(
            f"{variable}={value!r} cannot be used with torch {torch.__version__}: unset would be accepted"
        )
    os.environ.setdefault(*_TIMING)
    for name, needed in _ENVIRONMENT.items():
        given = os.environ.setdefault(name, needed)
        if given != needed:
            raise ConfigError(
                f"{name}={given!r} cannot be used: torch would end the processes that survive a fault; {needed!r} or "
                "unset would be accepted"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How the backend of a group is made, at first and after each recovery."""

    kind: Any  # ProcessGroupNCCL or ProcessGroupNCCL2
    options: Any
    device: torch.device | None  # of NCCL2, which is bound to one from the start
    is_lazy: bool  # the script has asked NCCL2 to connect at the first use

    @classmethod
    def of(cls, kind: Any, options: Any, device: torch.device | None) -> Recipe:
        return cls(kind=kind, options=options, device=device, is_lazy=bool(getattr(options, "lazy_init", False)))

    def make(self, store: dist.Store, rank: int, size: int) -> Any:
        """Returns a backend. One of NCCL2 is connected: this blocks until all peers have come."""
        if self.kind is not ProcessGroupNCCL2:
            return self.kind(store, rank, size, _without_split(self.options))
        self.options.lazy_init = self.is_lazy
        return self.kind(store, rank, size, _without_split(self.options), self.device)

    def make_unconnected(self, rank: int, size: int) -> Any:
        """Returns a backend without peers, for a rehearsal: it lies beneath a fake one and is never connected."""
        if self.kind is ProcessGroupNCCL2:
            self.options.lazy_init = True
            return self.kind(dist.HashStore(), rank, size, self.options, self.device)
        if not groups_ask_backends():
            rank, size = 0, 1
        return self.kind(dist.HashStore(), rank, size, self.options)


def _without_split(options: Any) -> Any:
    """After a recovery the communicator that a group was split off is gone, so the group is made without it."""
    if getattr(options, "split_from", None) is not None:
        options.split_from = None
    return options


class DeviceChoice:
    """Takes the place of the function of torch that chooses NCCL2's device and binds the group to it.

    A group that is made after one that is bound is split off it, and all members of that one have to take part, also
    those that are not in the new group. A recovery makes each group by itself, and a rehearsal has no peers. So groups
    are made as if no device was bound.
    """

    def __init__(self) -> None:
        self.named: torch.device | None = None  # by the script, for its default group
        self._of_group: torch.device | None = None  # for the group that is being made

    @contextlib.contextmanager
    def made_on(self, device: torch.device | None) -> Iterator[None]:
        """While a group is made for which the script has named a device, or None."""
        self._of_group = device
        try:
            yield
        finally:
            self._of_group = None

    def without_binding(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """`original` chooses by LOCAL_RANK."""

        def choose(options: Any) -> Any:
            named = self._of_group or getattr(options.process_group, "bound_device_id", None) or self.named
            asked = ("enable_reconfigure", "global_ranks_in_group", "group_rank")
            unbound = SimpleNamespace(process_group=None, **{name: getattr(options, name) for name in asked})
            return named or original(unbound)

        return choose


def warm_up(kind: Any) -> None:
    """Runs NCCL's set-up of a process, which takes most of a second, so that a spare does not need it when seated."""
    device = torch.device("cuda", torch.cuda.current_device())
    single = Recipe.of(kind, ProcessGroupNCCL.Options(), device).make(dist.HashStore(), 0, 1)
    connect([single], device.index)
    single.abort()


def connects_at_first_use(backend: Any) -> bool:
    return isinstance(backend, ProcessGroupNCCL)


def was_used(backend: Any) -> bool:
    """Whether a collective was enqueued. All members get the same answer, because they enqueue the same collectives."""
    return connects_at_first_use(backend) and backend._get_sequence_number_for_group() > 0


def collectives_so_far(backend: Any) -> int | None:
    """How many were enqueued; None for a backend that is none of NCCL's, as in a rehearsal."""
    is_nccl = isinstance(backend, tuple(torch_versions.nccl_classes()))
    return int(backend._get_sequence_number_for_group()) if is_nccl else None


def connect(backends: Sequence[Any], device: int) -> None:
    """Runs one tiny collective on each, which sets up everything that the first real one would set up.

    eager_connect_single_device() is not used: it would change how later point-to-point operations are carried out.
    """
    torch.cuda.set_device(device)  # each thread has a current device of its own
    works = [backend.allreduce([torch.zeros(1, device="cuda")]) for backend in backends]
    for work in works:
        work.wait()
    torch.cuda.current_stream().synchronize()


def close_group_call(backend: Any) -> None:
    """Ends NCCL's batch on this thread, which an exception between its start and its end leaves open for ever. NCCL2
    keeps its batch in the backend, and it is gone with that."""
    if isinstance(backend, ProcessGroupNCCL):
        with contextlib.suppress(RuntimeError):  # the operations in it were for communicators that are gone
            backend._group_end()


class Teardown:
    """Aborts several backends in parallel: in sequence, an abort that waits for another one would wait for ever."""

    def __init__(self, backends: Sequence[Any], on_done: Callable[[float], None], on_hang: Callable[[], None]) -> None:
        self._backends, self._on_done, self._on_hang = tuple(backends), on_done, on_hang

    def start(self) -> None:
        """Returns at once. `on_done` gets the seconds it took; `on_hang` is called if an abort does not return."""
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
