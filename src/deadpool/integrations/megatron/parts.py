"""The parts of model chunks and optimizers of Megatron-Core that this integration looks at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer.optimizer import ChainedOptimizer, Float16OptimizerWithFloat16Params
from torch import Tensor
from torch.distributed import get_process_group_ranks


def chained(optimizer: Any) -> list[Any]:
    """Returns those of Megatron's optimizers that hold one of torch's each: experts and other parameters have their
    own.
    """
    return list(optimizer.chained_optimizers) if isinstance(optimizer, ChainedOptimizer) else [optimizer]


def bucket_groups(chunk: DistributedDataParallel) -> list[Any]:
    return [*chunk.bucket_groups, *chunk.expert_parallel_bucket_groups]


def buffers(chunk: DistributedDataParallel) -> list[Any]:
    return [*chunk.buffers, *chunk.expert_parallel_buffers]


def ordered_params(group: Any) -> list[Tensor]:
    """The parameters of a bucket group in an order that all processes agree on; its own attribute is a set."""
    return [param for bucket in group.buckets for param in bucket.params_list]


def replicas(chunks: Iterable[Any], optimizers: Iterable[Any]) -> dict[int, tuple[int, ...]]:
    """id(parameter) -> the data parallel ranks that hold the same.

    With the distributed optimizer this is true of the model's parameters, and not of the shards in which the optimizer
    keeps them. With overlap_param_gather it is not even true of those: at the end of a step each rank has updated its
    own shard, and the forward of the next step gathers the others.
    """
    found: dict[int, tuple[int, ...]] = {}
    for chunk in chunks:
        if chunk.ddp_config.overlap_param_gather:
            continue
        for param in chunk.params_with_grad:
            group = chunk.dp_cp_group if getattr(param, "allreduce", True) else chunk.expt_dp_group
            ranks = tuple(sorted(get_process_group_ranks(group)))
            if len(ranks) > 1:
                found[id(param)] = ranks
    for param, main_param in _main_params(optimizers):
        if id(param) in found:
            found[id(main_param)] = found[id(param)]
    return found


def _main_params(optimizers: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Each parameter in half precision, and the copy in full precision that every data parallel rank updates."""
    for optimizer in optimizers:
        if isinstance(optimizer, Float16OptimizerWithFloat16Params):
            for params, main_params in zip(optimizer.float16_groups, optimizer.fp32_from_float16_groups, strict=True):
                yield from zip(params, main_params, strict=True)
