"""The parts of Megatron-Core and their state.

State that Megatron-Core keeps in module globals and in objects without a usable state_dict.

The parts of model chunks and optimizers of Megatron-Core that this integration looks at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from megatron.core import num_microbatches_calculator
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer.optimizer import ChainedOptimizer, Float16OptimizerWithFloat16Params
from megatron.core.rerun_state_machine import RerunState, get_rerun_state_machine
from megatron.core.tensor_parallel import random
from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker
from torch import Tensor
from torch.distributed import get_process_group_ranks

from deadpool.integrations.plain_state import plain_attributes, set_plain_attributes


class RngTracker:
    """The generators that Megatron switches to: one per rank for tensor parallel regions, one for experts."""

    def state_dict(self) -> dict[str, Any]:
        tracker = random._CUDA_RNG_STATE_TRACKER
        return dict(tracker.states_) if tracker is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        tracker = random._CUDA_RNG_STATE_TRACKER
        if tracker is not None:
            tracker.states_ = dict(state)
            tracker._current_state_name = "default-rng"


class AuxiliaryLosses:
    """Sums over steps, until the script reads them, for each layer with experts. Their order is that of collectives."""

    def state_dict(self) -> dict[str, Any]:
        return {name: entry["values"] for name, entry in get_moe_layer_wise_logging_tracker().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        tracker = get_moe_layer_wise_logging_tracker()
        known = dict(tracker)
        tracker.clear()
        for name, values in state.items():
            # The groups to reduce over are given anew by every forward.
            entry = known.get(name, {"reduce_group": None, "avg_group": None, "reduce_group_has_dp": False})
            tracker[name] = {**entry, "values": values.to(torch.cuda.current_device())}


class Microbatches:
    """How many of them a step has; with a batch size that grows this follows from consumed samples."""

    def state_dict(self) -> dict[str, Any] | None:
        calculator = num_microbatches_calculator._GLOBAL_NUM_MICROBATCHES_CALCULATOR
        return plain_attributes(calculator) if calculator is not None else None

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        calculator = num_microbatches_calculator._GLOBAL_NUM_MICROBATCHES_CALCULATOR
        if calculator is not None and state is not None:
            rank = getattr(calculator, "rank", None)
            set_plain_attributes(calculator, state)
            if rank is not None:
                calculator.rank = rank


class RerunPosition:
    """Megatron's machine that can run a step again. It is disabled, but counts, and alternates between two states."""

    _KEPT = ("current_iteration", "first_iteration_complete", "large_value_counts", "max_values")

    def state_dict(self) -> dict[str, Any]:
        machine = get_rerun_state_machine()
        kept = {name: getattr(machine, name) for name in self._KEPT}
        return {**kept, "state": machine.state.name}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        machine = get_rerun_state_machine()
        for name in self._KEPT:
            setattr(machine, name, state[name])
        machine.state = RerunState[state["state"]]


class PlainAttributes:
    """The attributes of an object that are numbers, text or containers of these: a scheduler of learning rates, whose
    own load_state_dict adds to its steps, or a namespace with the counters of a script."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def state_dict(self) -> dict[str, Any]:
        return plain_attributes(self._owner)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_plain_attributes(self._owner, state)


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
