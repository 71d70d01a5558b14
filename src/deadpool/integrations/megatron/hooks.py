"""`protect`, which gives a loop its steps."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from deadpool.integrations.library_check import is_protected_job
from deadpool.integrations.megatron.buckets import BucketState
from deadpool.integrations.megatron.leftovers import MegatronAdapter
from deadpool.integrations.megatron.parts import chained
from deadpool.integrations.megatron.relies_on import LIBRARIES
from deadpool.integrations.megatron.state import (
    AuxiliaryLosses,
    Microbatches,
    PlainAttributes,
    RerunPosition,
    RngTracker,
)
from deadpool.integrations.megatron.supported import require_supported
from deadpool.trainer.interface import Job
from deadpool.trainer.pool import join
from deadpool.trainer.unprotected import UnprotectedPool


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
        return UnprotectedPool().protect(**found)
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
