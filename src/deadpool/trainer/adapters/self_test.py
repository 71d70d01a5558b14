"""Tries what the adapters rely on in torch's own frameworks, on a model of a few numbers and on groups without peers.

Called inside backend/self_test.py's rehearsing_groups().
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

from deadpool.backend.self_test import RANK, SIZE, require
from deadpool.trainer.adapters.ddp import DdpAdapter
from deadpool.trainer.adapters.fsdp2 import Fsdp2Adapter, param_groups, watch_shards
from deadpool.trainer.adapters.pipeline import FLAGS, PipelineAdapter, schedules, watch_schedules
from deadpool.trainer.adapters.plain import Adapter

_WIDTH = 2 * SIZE


def check_ddp() -> None:
    module = DistributedDataParallel(nn.Linear(_WIDTH, _WIDTH))
    adapter = DdpAdapter(module)
    _rehearse([adapter], module)
    adapter.seated(0)
    _rehearse([adapter], module)
    require(len(adapter.replicas()) == 2, "DistributedDataParallel does not say which ranks have the same parameters")


def check_fsdp2() -> None:
    module: Any = fully_shard(nn.Linear(_WIDTH, _WIDTH))
    rows = [each.to_local().shape[0] for each in module.parameters()]
    require(rows == [2, 2], f"fully_shard gives a rank {rows} rows in a rehearsal, and [2, 2] in a job of {SIZE} ranks")
    adapter = Fsdp2Adapter([module])
    for _ in range(2):
        module(torch.ones(1, _WIDTH)).sum()  # cut off before its backward
        adapter.reset()
    _rehearse([adapter], module)
    adapter.seated(1)
    module.set_requires_gradient_sync(False)  # then a backward leaves whole gradients, as one that was cut off does
    module(torch.ones(1, _WIDTH)).sum().backward()
    require(_have_gradients(module) == [True, True], "fully_shard keeps its parameters or their gradients elsewhere")
    adapter.reset()
    require(_have_gradients(module) == [False, False], "fully_shard keeps gradients of a step that was cut off")
    _check_shards(module, adapter)


def _check_shards(module: Any, adapter: Fsdp2Adapter) -> None:
    params, watch = list(module.parameters()), watch_shards([module])

    def exchanged() -> bool:
        return bool(watch.take_exchanged(lambda: set(map(id, params))))

    require(not exchanged(), "fully_shard keeps its parameters or shards elsewhere")
    params[0]._local_tensor = params[0]._local_tensor.clone()
    require(exchanged(), "fully_shard keeps no memory of its own")
    adapter.reset()
    require(not exchanged(), "the memory of fully_shard cannot be put back")


def _have_gradients(module: Any) -> list[bool]:
    kept = [each for group in param_groups(module._get_fsdp_state()) for each in group.fsdp_params]
    return [getattr(getattr(each, "_unsharded_param", None), "grad", None) is not None for each in kept]


def check_pipeline() -> None:
    watch_schedules()
    sample = torch.ones(1, _WIDTH)
    stage = PipelineStage(nn.Linear(_WIDTH, _WIDTH), RANK, SIZE, torch.device("cpu"), sample, sample)
    schedule = Schedule1F1B(stage, SIZE)
    adapter = PipelineAdapter()
    require(schedule in schedules(), "a pipeline schedule is made without a call of its base class")
    flags = sorted(name for name in vars(schedule) if name.endswith("_initialized"))
    unknown = [name for name in flags if name not in FLAGS]
    require(not unknown, f"a pipeline schedule says by {' and '.join(unknown)} how far it is initialised")
    adapter.reset()
    adapter.renegotiate()
    require(len(adapter.agreement()) >= 2, "a pipeline schedule has no flags that say how far it is initialised")


def _rehearse(adapters: Sequence[Adapter], module: nn.Module) -> None:
    with contextlib.ExitStack() as stack:
        for adapter in adapters:
            stack.enter_context(adapter.rehearsing())
        module(torch.ones(1, _WIDTH)).sum().backward()
    for adapter in adapters:
        adapter.reset()
