"""`protect` for an Accelerator, what it refuses, and what Accelerate keeps from one update to the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard
from accelerate.utils import DistributedType
from torch import nn

from deadpool.integrations.accelerate.data import Endless
from deadpool.integrations.accelerate.refusals import AccelerateRefusal
from deadpool.integrations.accelerate.relies_on import LIBRARIES
from deadpool.integrations.library_check import is_protected_job
from deadpool.integrations.refusals import Refused
from deadpool.trainer import current
from deadpool.trainer.interface import Job
from deadpool.trainer.protect import join
from deadpool.trainer.unprotected import UnprotectedRank

_KNOWN = (DistributedType.MULTI_GPU, DistributedType.MULTI_CPU, DistributedType.FSDP)


class UpdateState:
    """The count of micro batches, whether the last one has updated, and whether a gradient has overflowed."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def state_dict(self) -> dict[str, Any]:
        accelerator = self._accelerator
        assert current.session is not None
        if not current.session.groups.detached and not accelerator.sync_gradients:
            raise Refused(
                AccelerateRefusal.BETWEEN_UPDATES,
                "a step has ended between two updates: put all micro batches of an update into one `with step:`, until "
                "accelerator.sync_gradients is true",
            )
        overflows = [each._is_overflow for each in accelerator._optimizers]
        return {"step": accelerator.step, "overflows": overflows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        accelerator = self._accelerator
        accelerator.step, accelerator.gradient_state.sync_gradients = state["step"], True
        for optimizer, overflow in zip(accelerator._optimizers, state["overflows"], strict=True):
            optimizer._is_overflow = overflow


def endless(loader: Any) -> Iterator[Any]:
    """The batches of a loader that `accelerator.prepare` has returned, epoch after epoch. Call it before anything is
    read, draw from it with `next`, and pass it to `protect`."""
    return Endless(loader)


def protect(accelerator: Accelerator, /, *, model: nn.Module, force: bool = False, **objects: object) -> Job:
    """Protects `model` as `accelerator.prepare` has returned it, all optimizers and schedulers, and returns the job
    whose `steps` is the training loop. Call it after `prepare`, once.

    `objects` are further ones whose state training changes, as for `deadpool.protect`: data=endless(loader) above all.
    A version of accelerate in which something is missing that this relies on is refused, and so is every loop as long
    as no fault was tried with it; with `force` both are accepted. In a script that DeadPool did not start the same loop
    trains unprotected, and a note says so.
    """
    is_protected = is_protected_job(LIBRARIES, force=force)
    require_supported(accelerator, objects)
    found = {"model": model} | _prepared(accelerator) | objects
    if not is_protected:
        return UnprotectedRank().protect(**found)
    require_supported_layout(accelerator)
    if not force:
        raise Refused(
            AccelerateRefusal.OWN_LOOP,
            "a loop of your own cannot be protected with Accelerate yet: no fault was tried with it; use "
            "protect(accelerator, force=True), and compare the losses once with those of an unprotected run",
        )
    return join().protect(**found, updates=UpdateState(accelerator))


def _prepared(accelerator: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    found |= {f"optimizer{index}": each.optimizer for index, each in enumerate(accelerator._optimizers)}
    found |= {f"scheduler{index}": each.scheduler for index, each in enumerate(accelerator._schedulers)}
    return found | ({"scaler": accelerator.scaler} if accelerator.scaler is not None else {})


def require_supported(accelerator: Any, objects: dict[str, object]) -> None:
    if not accelerator._optimizers:
        raise Refused(
            AccelerateRefusal.NOTHING_PREPARED,
            "this Accelerator has prepared no optimizer: call accelerator.prepare() before protect()",
        )
    for name, value in objects.items():
        if isinstance(value, DataLoaderShard | DataLoaderDispatcher):
            raise Refused(
                AccelerateRefusal.NOT_ENDLESS,
                f"protect({name}=...) got a loader of accelerator.prepare, whose generator reads ahead: use "
                f"batches = endless(loader), protect(accelerator, {name}=batches), and next(batches) in the loop",
            )


def require_supported_layout(accelerator: Any) -> None:
    kind, plugin = accelerator.distributed_type, getattr(accelerator.state, "fsdp_plugin", None)
    for is_used, refusal, what, instead in (
        (
            accelerator.num_processes == 1,
            AccelerateRefusal.ONE_RANK,
            "a job of one rank",
            "start it with `deadpool run --nodes 2`",
        ),
        (
            kind not in _KNOWN,
            AccelerateRefusal.OTHER_DISTRIBUTED,
            f"distributed_type {kind.value}",
            "it was never tried; DeepSpeed and Megatron-Core have integrations of their own",
        ),
        (
            kind == DistributedType.FSDP and plugin is not None and plugin.fsdp_version < 2,
            AccelerateRefusal.FSDP1,
            "fsdp_version 1",
            "use fsdp_version 2",
        ),
        (
            kind == DistributedType.FSDP and plugin is not None and bool(plugin.cpu_offload),
            AccelerateRefusal.CPU_OFFLOAD,
            "fsdp_offload_params",
            "it was never tried: leave it out",
        ),
        (
            accelerator.mixed_precision == "fp8",
            AccelerateRefusal.FP8,
            "mixed_precision fp8",
            "its scales and their history are not captured; use bf16",
        ),
    ):
        if is_used:
            raise Refused(refusal, f"{what} cannot be protected with Accelerate: {instead}")
