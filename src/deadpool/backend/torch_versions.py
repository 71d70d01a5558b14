"""Which versions of torch were tested, and in what they differ as far as DeadPool is concerned.

The one place that names versions: what other pages and files say of them is checked against TESTED by a test. A
difference is found by looking for what is different, never by comparing numbers, so that a build between two releases
is taken for what it is. It is looked for on classes: on an instance some properties of torch raise.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import fsdp, pipelining

TESTED = ("2.11", "2.12", "2.13", "2.14", "2.15")
"""In these, survivors of a fault keep their processes. Without a gap, the oldest first. One that lies between two that
were run need not have been run itself: 2.12 was not (docs/torch-internals.md says what was run with which)."""


def is_tested(version: str | None = None) -> bool:
    """Looks at the first two numbers of the version, by default that of this torch."""
    numbers = re.match(r"\d+\.\d+", version or torch.__version__)
    return numbers is not None and numbers[0] in TESTED


def tested_range() -> str:
    return f"{TESTED[0]} to {TESTED[-1]}"


# Names that a torch may lack are looked up so that importing this package does not fail: what is missing
# trainer/process/torch_check.py says in words.


class Missing:
    """A class that stands in place of one that this torch does not have: nothing is an instance of it."""


def found(owner: Any, name: str) -> Any:
    return getattr(owner, name, Missing)


FakeProcessGroup: Any = found(_distributed_c10d, "FakeProcessGroup")
ProcessGroupGloo: Any = found(_distributed_c10d, "ProcessGroupGloo")
Work: Any = found(_distributed_c10d, "Work")
BackendType: Any = found(dist.ProcessGroup, "BackendType")
FSDPModule: Any = found(fsdp, "FSDPModule")
PipelineStage: Any = found(pipelining, "PipelineStage")
PipelineSchedule: Any = found(pipelining.schedules, "_PipelineSchedule")


# --- process groups --------------------------------------------------------------------------------------------------


@functools.cache
def groups_ask_backends() -> bool:
    """Whether rank and size of a group are those of its default backend (since 2.14), and not those that the group was
    made with. No attribute tells, so a group is asked whose backend differs from it."""
    return bool(_group_with_fake(size=1).size() == 1)


def _group_with_fake(size: int) -> Any:
    """A group that was made for two ranks; its backend, which communicates with no peer, says that it is of `size`."""
    group: Any = dist.ProcessGroup(dist.HashStore(), 0, 2)
    kind = BackendType.GLOO
    fake = FakeProcessGroup._create_internal(rank=0, world_size=size, options=FakeProcessGroup.Options())
    group._set_default_backend(kind)
    group._register_backend(torch.device("cpu"), kind, fake)
    return group


@functools.cache
def splits_keep_order() -> bool:
    """Whether the ranks of a group that is split off have the order in which they were listed (since 2.14). Before that
    they are sorted. Only torch itself tells, so it splits a group without peers, which older ones refuse."""
    group = _group_with_fake(size=2)
    group._set_group_name("probe")
    try:
        return bool(group.split_group([1, 0]).rank() == 1)
    except RuntimeError:
        return False


def gloo_can_stay_unconnected() -> bool:
    """Whether a gloo backend can have a rank among several without a connection to any (since 2.14): torch makes such a
    backend for a reconfigure(), and it connects only then."""
    return hasattr(ProcessGroupGloo._Options, "enable_reconfigure")


def members_agree_on_sequence_numbers() -> bool:
    """Whether a new backend has to agree with its peers on the number of its first collective. Since 2.14 all begin at
    0, and the function that agrees is deprecated."""
    return not gloo_can_stay_unconnected()


ProcessGroupNCCL: Any = getattr(_distributed_c10d, "ProcessGroupNCCL", None)
"""None: this torch was built without NCCL."""

_nccl2: Any = getattr(_distributed_c10d, "ProcessGroupNCCL2", None)

ProcessGroupNCCL2: Any = _nccl2 if hasattr(getattr(ProcessGroupNCCL, "Options", None), "lazy_init") else None
"""The class of "nccl" since 2.15, where the one above is "nccl-legacy". It is None before that: the NCCL2 of 2.14,
which a script has to ask for, connects whenever it is made, and a rehearsal must not."""


def nccl_classes() -> list[Any]:
    return [each for each in (ProcessGroupNCCL, ProcessGroupNCCL2) if each is not None]


NCCL_NAMES = ("nccl", *(["nccl-legacy"] if _nccl2 else []), *(["nccl2"] if ProcessGroupNCCL2 else []))
"""The names of the backends that are one of these classes."""

NCCL2_WANTED = ("TORCH_DIST_USE_NCCL2", "1")
"""The variable that makes "nccl" NCCL2 in 2.14."""

FLIGHT_RECORDER_HOOKS = "pg_flight_recorder_hooks"
"""The registry of hooks that record the collectives of backends which do not record themselves (since 2.15)."""


# --- frameworks ------------------------------------------------------------------------------------------------------


def fsdp2_resets_itself() -> bool:
    """Whether a sharded module has reset_iter_state(), which is public (since 2.12)."""
    return hasattr(FSDPModule, "reset_iter_state")


def fsdp2_accumulates_apart() -> bool:
    """Whether a sharded parameter keeps accumulated gradients in an attribute of its own. Since 2.15 that is a property
    which reads the gradient of the unsharded parameter."""
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    return not isinstance(vars(FSDPParam).get("unsharded_accumulated_grad"), property)


def receives_own_their_buffers() -> bool:
    """Whether a pipeline's receive has its buffer only from when it is posted until it is consumed (since 2.15). Before
    that the buffers are made once and stay."""
    from torch.distributed.pipelining import stage

    return hasattr(getattr(stage, "_RecvInfo", None), "take_buffer")
