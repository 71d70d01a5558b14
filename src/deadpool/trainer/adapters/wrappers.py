"""What is checked before a model is protected: its wrappers, and how well its torch is known.

`watch_wrappers` and `require_wrappers` check that the data parallel wrappers around protected modules are protected
too.

After a fault the reducer of DistributedDataParallel has to be reset and seated (ddp.py), and its flags and hooks are
part of the state (ddp_state.py). If only the inner module were protected, a survivor would go on with half-filled
buckets. The constructors are wrapped before the script runs, so that wrappers made after protect() are known too.
They are held by weak references.

`recovers_in_place` and `warning`: how a trainer recovers under which torch, and the warning for one that was not
tested.

Adapters change internals of DDP, FSDP2 and process groups, and a difference between two versions of torch may lead
to wrong numbers without an error. So with an untested torch the job warns, and survivors of a fault do not keep
their processes: these end after unwinding, and fresh ones load the ranks' state from the memory of their own nodes.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from deadpool.backend.torch_versions import is_tested, tested_range
from deadpool.errors import ConfigError
from deadpool.trainer.adapters.pipeline import call_after_init

_known: weakref.WeakSet[Any] = weakref.WeakSet()


def watch_wrappers() -> None:
    """Called once per process, before the script's first line."""
    for kind in (DistributedDataParallel, FullyShardedDataParallel):
        call_after_init(kind, _known.add)


def require_wrappers(modules: Iterable[nn.Module]) -> None:
    """ConfigError: a wrapper around parameters of the modules is not among the modules, or cannot be protected."""
    modules = list(modules)
    inside = {id(each) for module in modules for each in module.modules()}
    if next(_problems(modules, inside), None) is None:
        return
    gc.collect()  # a wrapper that the script has dropped does no harm, but a cycle may keep it alive
    for problem in _problems(modules, inside):
        raise ConfigError(problem)


def _problems(modules: list[nn.Module], inside: set[int]) -> Iterator[str]:
    params = {id(param) for module in modules for param in module.parameters()}
    for each in list(_known):
        if id(each) not in inside and not any(id(param) in params for param in each.parameters()):
            continue
        if isinstance(each, FullyShardedDataParallel):
            yield (
                f"FullyShardedDataParallel around {type(each.module).__name__} cannot be protected: "
                "torch.distributed.fsdp.fully_shard would be accepted"
            )
        elif id(each) not in inside:
            yield (
                f"protect() got parameters of a DistributedDataParallel around {type(each.module).__name__}, but not "
                "the wrapper: pass the DistributedDataParallel module itself, as in protect(model=ddp)"
            )


def recovers_in_place(setting: str, version: str | None = None) -> bool:
    """`setting` is `in_place` of the configuration: auto, always or never."""
    return setting == "always" or (setting == "auto" and is_tested(version))


def warning(setting: str, version: str | None = None) -> str | None:
    """The warning for an untested torch; None if this torch is tested."""
    if is_tested(version):
        return None
    if setting == "always":
        way = "survivors of a fault keep their processes all the same, because of in_place='always'"
    else:
        way = "survivors of a fault restart their processes from memory, which is slower and as exact"
    return f"DeadPool was not tested with torch {version or torch.__version__} (tested: {tested_range()}): {way}"
