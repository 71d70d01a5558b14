"""Lets torchtitan 0.3 train on CPUs, over Gloo, for this example and the tests. Import it before torchtitan's trainer.

torchtitan takes "cuda" where torch finds no accelerator, and asks the module of its device for names and memory. On a
machine with a GPU nothing of that is changed. torchtitan 0.3 is made for a newer torch than 2.13, and what it does not
find there is added.
"""

from __future__ import annotations

import types
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torchtitan.tools import utils


class _CpuModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def get_device_name(self, *_: Any) -> str:
        return "cpu"

    def get_device_properties(self, *_: Any) -> Any:
        return types.SimpleNamespace(total_memory=1 << 34, name="cpu")

    def memory_stats(self, *_: Any) -> dict[str, int]:
        names = ("num_alloc_retries", "num_ooms", "active_bytes.all.peak", "reserved_bytes.all.peak")
        return dict.fromkeys(names, 0)

    def device_count(self) -> int:
        return 64

    def current_device(self) -> int:
        return 0

    def _nothing(self, *_: Any) -> None:
        pass

    reset_peak_memory_stats = empty_cache = set_device = synchronize = _nothing


_set_divide_factor = FSDPModule.set_gradient_divide_factor


def _set_divide_factor_without_premultiplied_sum(module: FSDPModule, factor: float) -> None:
    """torchtitan sets 1, which torch turns into a reduction that Gloo does not have."""
    module.set_force_sum_reduction_for_comms(True)
    _set_divide_factor(module, factor)


if not hasattr(dist, "set_timeout"):
    dist.set_timeout = dist.distributed_c10d._set_pg_timeout
if not torch.accelerator.is_available():
    FSDPModule.set_gradient_divide_factor = _set_divide_factor_without_premultiplied_sum  # type: ignore[method-assign]
    utils.device_type, utils.device_module = "cpu", _CpuModule("cpu")
    utils.get_local_device = lambda: torch.device("cpu")
