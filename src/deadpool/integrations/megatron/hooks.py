"""`protect` for Megatron-Core, and what it refuses.

`protect`: `protect`, which gives a loop its steps.

`require_supported`: what cannot be protected, because a step could not be redone exactly, and what was never tried.
"""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params, FP32Optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.rerun_state_machine import RerunMode, get_rerun_state_machine
from megatron.core.tensor_parallel import random
from torch import optim

from deadpool.integrations.library_check import is_protected_job
from deadpool.integrations.megatron.leftovers import BucketState, MegatronAdapter
from deadpool.integrations.megatron.refusals import MegatronRefusal
from deadpool.integrations.megatron.relies_on import LIBRARIES
from deadpool.integrations.megatron.state import (
    AuxiliaryLosses,
    Microbatches,
    PlainAttributes,
    RerunPosition,
    RngTracker,
    chained,
)
from deadpool.integrations.refusals import Refused
from deadpool.trainer.interface import Job
from deadpool.trainer.protect import join
from deadpool.trainer.unprotected import UnprotectedRank

_KINDS = (DistributedOptimizer, Float16OptimizerWithFloat16Params, FP32Optimizer)
_TORCHS_OWN = (optim.Adam, optim.AdamW, optim.SGD)
_SCALES = "scales and their history are kept outside of the state"


def require_supported(chunks: list[Any], optimizer: Any, *, force: bool) -> None:
    for chunk in chunks:
        if type(chunk) is not DistributedDataParallel:
            raise Refused(
                MegatronRefusal.OTHER_CHUNK,
                f"a model chunk is a {type(chunk).__name__}: only megatron.core.distributed.DistributedDataParallel "
                "can be protected, also where there is one data parallel rank; Megatron's FSDP cannot",
            )
    optimizers = chained(optimizer)
    for each in optimizers:
        if type(each) not in _KINDS:
            raise Refused(
                MegatronRefusal.OTHER_OPTIMIZER,
                f"the optimizer {type(each).__name__} cannot be protected: use what get_megatron_optimizer makes for "
                "adam or sgd",
            )
        if each.is_stub_optimizer:
            raise Refused(
                MegatronRefusal.NO_PARAMETERS,
                "a rank without parameters to train cannot be protected: nothing tells when it updates",
            )
    for refusal, what, why in _inexact(chunks, optimizers):
        raise Refused(refusal, f"{what} cannot be protected with Megatron-Core: {why}")
    for refusal, what in [] if force else _untried(chunks, optimizers):
        raise Refused(
            refusal,
            f"{what} was never tried with this integration: leave it out, or use force=True, and compare the losses "
            "with those of an unprotected run",
        )


def _inexact(chunks: list[Any], optimizers: list[Any]) -> list[tuple[MegatronRefusal, str, str]]:
    model, ddp, update = chunks[0].config, chunks[0].ddp_config, optimizers[0].config
    tracker = random._CUDA_RNG_STATE_TRACKER
    has_plain_tracker = tracker is None or (
        type(tracker) is random.CudaRNGStatesTracker and not tracker.use_cudagraphable_rng
    )
    return [
        (refusal, what, why)
        for is_used, refusal, what, why in (
            (bool(model.fp8 or model.fp4), MegatronRefusal.FP8, "fp8 and fp4", _SCALES),
            (ddp.fp8_param_gather, MegatronRefusal.FP8_GATHER, "fp8_param_gather", _SCALES),
            (
                model.cuda_graph_impl != "none" or model.enable_cuda_graph or model.external_cuda_graph,
                MegatronRefusal.CUDA_GRAPHS,
                "CUDA graphs",
                "they hold collectives of groups that are rebuilt after a fault",
            ),
            (
                not has_plain_tracker,
                MegatronRefusal.OTHER_TRACKER,
                "a tracker of random numbers for CUDA graphs or of Transformer Engine",
                "its states are not captured; use Megatron's own",
            ),
            (
                model.cpu_offloading or model.fine_grained_activation_offloading,
                MegatronRefusal.ACTIVATION_OFFLOAD,
                "offloading of activations",
                "what a step that was cut off has moved cannot be dropped",
            ),
            (
                update.optimizer_cpu_offload,
                MegatronRefusal.OPTIMIZER_OFFLOAD,
                "optimizer_cpu_offload",
                "its state is spread over several optimizers",
            ),
            (
                update.use_precision_aware_optimizer,
                MegatronRefusal.PRECISION_AWARE,
                "use_precision_aware_optimizer",
                "parameters are in the optimizer's own format",
            ),
            (
                update.overlap_param_gather_with_optimizer_step,
                MegatronRefusal.GATHER_IN_STEP,
                "overlap_param_gather_with_optimizer_step",
                "parameters are in flight when a step ends",
            ),
            (
                ddp.num_distributed_optimizer_instances > 1,
                MegatronRefusal.SEVERAL_INSTANCES,
                "several instances of the distributed optimizer",
                "gradients are reduced on a stream that is not watched",
            ),
            (
                bool(model.mtp_num_layers),
                MegatronRefusal.MULTI_TOKEN,
                "multi-token prediction",
                "the sums of its losses are not captured",
            ),
            (
                model.experimental_attention_variant is not None,
                MegatronRefusal.ATTENTION_VARIANT,
                "experimental_attention_variant",
                "the sums of its losses are not captured",
            ),
            (model.qk_clip, MegatronRefusal.QK_CLIP, "qk_clip", "it changes parameters outside of the optimizer"),
            (
                get_rerun_state_machine().get_mode() != RerunMode.DISABLED,
                MegatronRefusal.RERUN,
                "the rerun state machine",
                "it runs steps again itself; use RerunMode.DISABLED, which still looks for NaN",
            ),
        )
        if is_used
    ]


def _untried(chunks: list[Any], optimizers: list[Any]) -> list[tuple[MegatronRefusal, str]]:
    model, ddp = chunks[0].config, chunks[0].ddp_config
    kinds = {type(each.optimizer).__name__ for each in optimizers if not isinstance(each.optimizer, _TORCHS_OWN)}
    outside = {
        type(module).__module__.split(".")[0]
        for chunk in chunks
        for module in chunk.modules()
        if type(module).__module__.startswith(("transformer_engine", "megatron.core.extensions"))
    }
    return [
        (refusal, what)
        for is_used, refusal, what in (
            (bool(kinds), MegatronRefusal.FUSED_OPTIMIZER, f"the optimizer {', '.join(sorted(kinds))}"),
            (bool(outside), MegatronRefusal.ENGINE, "Transformer Engine"),
            (model.context_parallel_size > 1, MegatronRefusal.CONTEXT_PARALLEL, "context parallelism"),
            (model.gradient_accumulation_fusion, MegatronRefusal.ACCUMULATION_FUSION, "gradient_accumulation_fusion"),
            (model.tp_comm_overlap, MegatronRefusal.TP_OVERLAP, "tp_comm_overlap"),
            (
                model.delay_wgrad_compute or ddp.delay_wgrad_compute,
                MegatronRefusal.DELAYED_WGRAD,
                "delay_wgrad_compute",
            ),
            (
                model.overlap_moe_expert_parallel_comm,
                MegatronRefusal.EXPERT_OVERLAP,
                "overlap_moe_expert_parallel_comm",
            ),
            (model.moe_shared_expert_overlap, MegatronRefusal.SHARED_EXPERT_OVERLAP, "moe_shared_expert_overlap"),
            (model.defer_embedding_wgrad_compute, MegatronRefusal.DEFERRED_EMBEDDING, "defer_embedding_wgrad_compute"),
            (
                model.moe_token_dispatcher_type == "flex",
                MegatronRefusal.FLEX_DISPATCHER,
                "moe_token_dispatcher_type='flex'",
            ),
            (ddp.nccl_ub, MegatronRefusal.NCCL_UB, "nccl_ub"),
            (
                ddp.reduce_scatter_with_fp32_accumulation,
                MegatronRefusal.FP32_SCATTER,
                "reduce_scatter_with_fp32_accumulation",
            ),
        )
        if is_used
    ]


def protect(
    model: Any,
    /,
    *,
    optimizer: Any,
    scheduler: Any = None,
    data: Any = None,
    force: bool = False,
    **objects: object,
) -> Job:
    """Protects model chunks of Megatron-Core and their optimizer, and returns the job whose `steps` is the training
    loop.

    `model` is a DistributedDataParallel of megatron.core, or the list of them that interleaved schedules take. `data`
    is what the loop draws batches from, as for `deadpool.protect`, or a list of these. `objects` are further ones whose
    state training changes; of an argparse.Namespace or a SimpleNamespace all plain values are captured, such as
    consumed samples. With `force` features are accepted that were never tried, and versions in which something is
    missing that this relies on. In a script that DeadPool did not start, the steps are run unprotected, and a note says
    so.
    """
    is_protected = is_protected_job(LIBRARIES, force=force)
    chunks = list(model) if isinstance(model, list | tuple) else [model]
    optimizers = chained(optimizer)
    found = _objects(chunks, optimizers, scheduler, data) | {name: _stateful(each) for name, each in objects.items()}
    if not is_protected:
        return UnprotectedRank().protect(**found)
    require_supported(chunks, optimizer, force=force)
    adapter = MegatronAdapter(chunks, optimizers)
    return join().protect(adapters=[adapter], **found, leftovers=adapter)


def _objects(chunks: list[Any], optimizers: list[Any], scheduler: Any, data: Any) -> dict[str, Any]:
    found: dict[str, Any] = {f"model{index}": chunk for index, chunk in enumerate(chunks)}
    for index, each in enumerate(optimizers):
        if each.optimizer is not None:
            found[f"optimizer{index}"] = each.optimizer
        if getattr(each, "grad_scaler", None):
            found[f"scaler{index}"] = each.grad_scaler
    if scheduler is not None:
        found["scheduler"] = PlainAttributes(scheduler) if _adds_steps(scheduler) else scheduler
    several = data if isinstance(data, list | tuple) else [data]
    distinct = {id(each): each for each in several if each is not None}
    found |= {f"data{index}": each for index, each in enumerate(distinct.values())}
    found |= {
        "buckets": BucketState(chunks),
        "rng_tracker": RngTracker(),
        "auxiliary_losses": AuxiliaryLosses(),
        "microbatches": Microbatches(),
        "rerun": RerunPosition(),
    }
    return found


def _adds_steps(scheduler: Any) -> bool:
    return isinstance(scheduler, OptimizerParamScheduler)


def _stateful(value: object) -> object:
    return PlainAttributes(value) if isinstance(value, Namespace | SimpleNamespace) else value
