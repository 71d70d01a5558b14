"""Stand-ins for a torch that nobody has seen yet: each changes one thing that DeadPool relies on.

`--preload strange_torch` applies the one that STRANGE_TORCH names, before anything of DeadPool looks at torch.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.stage import _PipelineStageBase

_c10d: Any = dist.distributed_c10d
_ProcessGroup: Any = dist.ProcessGroup
_Gloo: Any = _distributed_c10d.ProcessGroupGloo


def pass_another_keyword() -> None:
    """torch gives the constructor of gloo one more argument, which is not switched off."""
    made_in = getattr(_c10d, "_create_gloo_process_group", _c10d._new_process_group_helper)
    source = inspect.getsource(made_in)
    begins = source.index("ProcessGroupGloo(") + len("ProcessGroupGloo(")
    ends = begins + source[begins:].index("timeout=")
    exec(source[:ends] + "topology='ring', " + source[ends:], vars(_c10d))
    init = _Gloo.__init__

    def accept(backend: Any, *arguments: Any, topology: str = "", **keywords: Any) -> None:
        init(backend, *arguments, **keywords)

    _Gloo.__init__ = accept


def lack_an_attribute() -> None:
    del _distributed_c10d.FakeProcessGroup._create_internal  # type: ignore[attr-defined]


def rename_classes() -> None:
    del _distributed_c10d.FakeProcessGroup  # type: ignore[misc]
    schedules.PipelineScheduleBase = schedules.__dict__.pop("_PipelineSchedule")  # type: ignore[attr-defined]


def change_a_signature() -> None:
    """FSDP2's reset wants to be told how. Where torch has none, the reset of a pipeline stage does."""

    def reset(module: Any, *, mode: str) -> None: ...

    owner: Any
    owner, name = (FSDPModule, "reset_iter_state")
    if not hasattr(owner, name):
        owner, name = (_PipelineStageBase, "clear_runtime_states")
    setattr(owner, name, reset)


def take_sizes_from_elsewhere() -> None:
    """Groups say that they are alone, as they did in a rehearsal under torch 2.14."""
    fake, size, rank = _distributed_c10d.FakeProcessGroup, _ProcessGroup.size, _ProcessGroup.rank

    def is_fake(group: Any) -> bool:
        return isinstance(group._get_backend(group._device_types[0]), fake)

    _ProcessGroup.size = lambda group: 1 if is_fake(group) else size(group)
    _ProcessGroup.rank = lambda group: 0 if is_fake(group) else rank(group)


def keep_the_first_backend() -> None:
    """A group ignores all backends but the first that it was given for a device."""
    register, seen = _ProcessGroup._register_backend, set[tuple[int, str]]()

    def register_once(group: Any, device: torch.device, kind: Any, backend: Any = None) -> None:
        if (id(group), device.type) not in seen:
            seen.add((id(group), device.type))
            register(group, device, kind, backend)

    _ProcessGroup._register_backend = register_once


def refuse_stores() -> None:
    """Ranks can meet by an address only: there is no way in which DeadPool could start a job."""

    def init_process_group(backend: str | None = None, *, address: str) -> None: ...

    dist.init_process_group = _c10d.init_process_group = init_process_group  # type: ignore[assignment]


STRANGE: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        *(pass_another_keyword, lack_an_attribute, rename_classes, change_a_signature),
        *(take_sizes_from_elsewhere, keep_the_first_backend, refuse_stores),
    )
}

if "STRANGE_TORCH" in os.environ:
    torch.__version__ = "2.99.0"  # type: ignore[assignment]
    STRANGE[os.environ["STRANGE_TORCH"]]()
