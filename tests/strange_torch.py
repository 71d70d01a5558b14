"""Stand-ins for a torch that nobody has seen yet: each changes one thing that DeadPool relies on.

`--preload strange_torch` applies the one that STRANGE_TORCH names, before anything of DeadPool looks at torch.
"""

from __future__ import annotations

import functools
import inspect
import os
import signal
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.tensor
from torch._C import _distributed_c10d
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
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


def take_sizes_from_the_newest_backend() -> None:
    """A group says what the backend says that was put into it last, which has fewer ranks after some recoveries."""
    size, rank = _ProcessGroup.size, _ProcessGroup.rank

    def newest(group: Any) -> Any:
        backend = group._get_backend(group._device_types[0]) if group._device_types else None
        return None if backend is None or backend.size() == 1 else backend

    _ProcessGroup.size = lambda group: size(group) if newest(group) is None else newest(group).size()
    _ProcessGroup.rank = lambda group: rank(group) if newest(group) is None else newest(group).rank()


def make_nccl_by_another_class() -> None:
    """A torch with NCCL whose "nccl" is none of the classes that are known."""
    _have_nccl()

    class ProcessGroupNCCL3:
        """Its communicators are made for GPUs only."""

        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            raise RuntimeError("ProcessGroupNCCL3 is only supported with GPUs, no GPUs found!")

    _c10d.ProcessGroupNCCL3 = ProcessGroupNCCL3
    made_in = _makers_of_nccl()
    for each in made_in:
        source = inspect.getsource(each)
        for name in ("ProcessGroupNCCL2(", "ProcessGroupNCCL("):
            source = source.replace(name, "ProcessGroupNCCL3(")
        exec(source, vars(_c10d))
        _use_maker(each.__name__)


def choose_devices_by_another_function() -> None:
    """torch asks for the device of a group over NCCL with one more argument."""
    _have_nccl()
    if not hasattr(_c10d, "_nccl2_device"):
        _c10d._nccl2_device = lambda options, rank: None
    for each in _makers_of_nccl():
        source = inspect.getsource(each).replace("_nccl2_device(opts)", "_nccl2_device(opts, opts.group_rank)")
        exec(source.replace("= ProcessGroupNCCL(", "= _nccl2_device(None, 0) or ProcessGroupNCCL("), vars(_c10d))
        _use_maker(each.__name__)


def lose_the_class_of_nccl() -> None:
    _have_nccl()
    del _distributed_c10d.ProcessGroupNCCL  # type: ignore[attr-defined]


def _have_nccl() -> None:
    """Where torch was built without NCCL, it looks from here on as if it had been built with it."""
    if not hasattr(_distributed_c10d, "ProcessGroupNCCL"):

        class ProcessGroupNCCL:
            class Options(_Gloo._Options):  # type: ignore[misc]
                is_high_priority_stream = False

        _distributed_c10d.ProcessGroupNCCL = _c10d.ProcessGroupNCCL = ProcessGroupNCCL  # type: ignore[attr-defined]
        _c10d._NCCL_AVAILABLE = True


def _makers_of_nccl() -> list[Any]:
    names = ("_create_nccl2_process_group", "_create_nccl_process_group")
    return [getattr(_c10d, name) for name in names if hasattr(_c10d, name)] or [_c10d._new_process_group_helper]


def _use_maker(name: str) -> None:
    """The table of backends holds the function itself."""
    for key, plugin in list(_c10d.Backend._plugins.items()):
        if plugin.creator_fn.__name__ == name:
            _c10d.Backend._plugins[key] = plugin._replace(creator_fn=vars(_c10d)[name])


def keep_gradients_elsewhere() -> None:
    """FSDP2 keeps whole gradients in an attribute of its own, as it did in part before torch 2.15."""

    def elsewhere(parameter: Any, value: Any = None) -> None:
        unsharded = getattr(parameter, "_unsharded_param", None)
        if unsharded is not None and unsharded.grad is not None:
            parameter.whole_gradient, unsharded.grad = unsharded.grad, None

    post_backward = FSDPParamGroup.post_backward

    @functools.wraps(post_backward)
    def moved(group: Any, *arguments: Any) -> None:
        post_backward(group, *arguments)
        for each in group.fsdp_params:
            elsewhere(each)

    FSDPParamGroup.post_backward = moved  # type: ignore[method-assign]


def know_one_more_flag() -> None:
    """A schedule agrees with the other stages on one more thing in its first step."""
    init = schedules._PipelineSchedule.__init__

    @functools.wraps(init)
    def with_flag(schedule: Any, *arguments: Any, **keywords: Any) -> None:
        init(schedule, *arguments, **keywords)
        schedule._layout_initialized = False

    del with_flag.__wrapped__  # type: ignore[attr-defined] # DeadPool takes a constructor with it for one of its own
    schedules._PipelineSchedule.__init__ = with_flag  # type: ignore[method-assign]


def broadcast_by_another_method() -> None:
    """`dist.broadcast` calls a method of the group that has another name."""
    _ProcessGroup.broadcast_single = vars(_ProcessGroup)["broadcast"]
    exec(inspect.getsource(_c10d.broadcast).replace("group.broadcast(", "group.broadcast_single("), vars(_c10d))
    dist.broadcast = _c10d.broadcast


def lose_gloo() -> None:
    del _distributed_c10d.ProcessGroupGloo  # type: ignore[attr-defined]


def lose_types_of_backends() -> None:
    del _ProcessGroup.BackendType


def lose_works() -> None:
    del _distributed_c10d.Work  # type: ignore[misc]


def lose_stages() -> None:
    del torch.distributed.pipelining.PipelineStage  # type: ignore[misc]


def lose_sharded_modules() -> None:
    del torch.distributed.fsdp.FSDPModule  # type: ignore[misc]


def lose_sharded_tensors() -> None:
    """So much is missing that DeadPool cannot even be imported."""
    del torch.distributed.tensor.DTensor  # type: ignore[misc]


def crash() -> None:
    """Memory is laid out in another way, and the process ends by it."""
    fake: Any = _distributed_c10d.FakeProcessGroup
    fake._create_internal = lambda **_: os.kill(os.getpid(), signal.SIGSEGV)


def have_another_number() -> None:
    """Nothing is missing; only the version is one that nobody has tried."""


def refuse_stores() -> None:
    """Ranks can meet by an address only: there is no way in which DeadPool could start a job."""

    def init_process_group(backend: str | None = None, *, address: str) -> None: ...

    dist.init_process_group = _c10d.init_process_group = init_process_group  # type: ignore[assignment]


STRANGE: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        *(pass_another_keyword, lack_an_attribute, rename_classes, change_a_signature),
        *(take_sizes_from_elsewhere, take_sizes_from_the_newest_backend, keep_the_first_backend),
        *(make_nccl_by_another_class, choose_devices_by_another_function, lose_the_class_of_nccl),
        *(
            keep_gradients_elsewhere,
            know_one_more_flag,
            broadcast_by_another_method,
            crash,
            refuse_stores,
            have_another_number,
        ),
        *(lose_gloo, lose_types_of_backends, lose_works, lose_stages, lose_sharded_modules, lose_sharded_tensors),
    )
}

if "STRANGE_TORCH" in os.environ:
    torch.__version__ = "2.99.0"  # type: ignore[assignment]
    STRANGE[os.environ["STRANGE_TORCH"]]()
