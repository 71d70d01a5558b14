"""`protect` for torchtitan, and what it refuses.

`ProtectedTrainer`: `protect`, and the methods of Trainer through which it calls us.

`require_supported`: what cannot be protected, because a step could not be redone exactly or was never tried. It is
refused with the reason.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.trainer import Trainer

from deadpool.integrations.library_check import is_protected_job
from deadpool.integrations.refusals import Refused
from deadpool.integrations.torchtitan.quiet import Quiet, open_loggers_later
from deadpool.integrations.torchtitan.refusals import TorchtitanRefusal
from deadpool.integrations.torchtitan.relies_on import LIBRARIES
from deadpool.integrations.torchtitan.training import Training
from deadpool.trainer import current
from deadpool.trainer.interface import Job
from deadpool.trainer.library_job import LibraryJob, UnprotectedLibraryJob

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_UNTRIED_TRAINERS = ("torchtitan.experiments.", "torchtitan.models.flux.")
_UNTRIED_DISPATCHERS = ("DeepEP", "HybridEP", "MinimalAsyncEP")


def require_supported(trainer: Any, objects: dict[str, Any]) -> None:
    """`objects` are those that the user protects himself."""
    if not isinstance(trainer, Trainer):
        raise Refused(
            TorchtitanRefusal.NO_TRAINER, f"protect() takes a torchtitan Trainer, and got {type(trainer).__name__}"
        )
    config = trainer.config
    for is_used, refusal, what, instead in (
        (
            trainer.parallel_dims.world_size == 1,
            TorchtitanRefusal.ONE_RANK,
            "a job of one rank",
            "start it with `deadpool run --nodes 2`",
        ),
        (config.comm.mode != "default", TorchtitanRefusal.COMM_MODE, f"--comm.mode {config.comm.mode}", "leave it out"),
        (
            _uses_cuda_graphs(trainer),
            TorchtitanRefusal.CUDA_GRAPHS,
            "CUDA graphs that hold collectives",
            "add --training.disable_cuda_graphs",
        ),
        (
            config.parallelism.pipeline_parallel_degree > 1,
            TorchtitanRefusal.PIPELINES,
            "--parallelism.pipeline_parallel_degree",
            _NO_PIPELINES,
        ),
        (
            config.training.enable_cpu_offload,
            TorchtitanRefusal.CPU_OFFLOAD,
            "--training.enable_cpu_offload",
            "leave it out: it was never tried",
        ),
        (
            config.parallelism.enable_fsdp_symm_mem,
            TorchtitanRefusal.SYMMETRIC_FSDP,
            "--parallelism.enable_fsdp_symm_mem",
            _OWN_MEMORY,
        ),
        (
            config.compile.enable_async_tensor_parallel,
            TorchtitanRefusal.ASYNC_TENSOR_PARALLEL,
            "--compile.enable_async_tensor_parallel",
            _OWN_MEMORY,
        ),
    ):
        if is_used:
            raise Refused(refusal, f"{what} cannot be protected with torchtitan: {instead}")
    _require_known_parts(trainer)
    _require_checkpoints_on_main_thread(trainer.checkpointer)
    known = {id(each) for each in objects.values()}
    for name, value in vars(trainer).items():
        if isinstance(value, _GENERATORS) and id(value) not in known:
            raise Refused(
                TorchtitanRefusal.OWN_GENERATOR,
                f"the trainer has a generator of its own ({name}): use protect(trainer, {name}=...), or torch's",
            )


_NO_PIPELINES = "it was never tried, because torchtitan's pipelines need a newer torch than this was tested with"
_OWN_MEMORY = "leave it out: memory that ranks share is lost with one of them"


def _uses_cuda_graphs(trainer: Any) -> bool:
    return trainer.device.type == "cuda" and not trainer.config.training.disable_cuda_graphs


def _require_known_parts(trainer: Any) -> None:
    for kind in type(trainer).__mro__:
        if kind.__module__.startswith(_UNTRIED_TRAINERS):
            raise Refused(
                TorchtitanRefusal.OTHER_TRAINER,
                f"{kind.__module__}.{kind.__name__} cannot be protected: it was never tried",
            )
    for optimizer in trainer.optimizers.optimizers:
        if "Muon" in type(optimizer).__name__:
            raise Refused(
                TorchtitanRefusal.DIST_MUON,
                "DistMuon cannot be protected: it was never tried, and has communication of its own",
            )
    for part in trainer.model_parts:
        for held in (each for module in part.modules() for each in vars(module).values()):
            if type(held).__name__.startswith(_UNTRIED_DISPATCHERS):
                raise Refused(
                    TorchtitanRefusal.OWN_DISPATCHER, f"{type(held).__name__} cannot be protected: {_OWN_MEMORY}"
                )


def _require_checkpoints_on_main_thread(checkpointer: Any) -> None:
    if not isinstance(checkpointer, CheckpointManager):
        raise Refused(
            TorchtitanRefusal.OTHER_CHECKPOINTER,
            f"{type(checkpointer).__name__} cannot be protected: use torchtitan's CheckpointManager",
        )
    if checkpointer.enable and checkpointer.pg is not None:
        raise Refused(
            TorchtitanRefusal.ASYNC_CHECKPOINT,
            "--checkpoint.async_mode other than disabled cannot be protected: a thread communicates then while a step "
            "is cut off; with DeadPool checkpoints can be rare, because a lost node costs no completed step",
        )


_LOOP = "trainer.train()"

open_loggers_later()  # a trainer is built before it is protected


def protect(trainer: Trainer, /, *, force: bool = False, **objects: object) -> Job:
    """Makes `trainer.train()` survive the loss of nodes. Call it before `train`, which can then be called once.

    `objects` are further ones whose state training changes, as for `deadpool.protect`. The job that is returned has no
    steps of its own: those are the trainer's. A library in which something is missing that this relies on is refused,
    and with `force` accepted. In a script that DeadPool did not start nothing changes, and a note says so.
    """
    if isinstance(trainer, ProtectedTrainer):
        raise Refused(TorchtitanRefusal.CALLED_TWICE, "protect() was called twice for this trainer")
    if not is_protected_job(LIBRARIES, force=force):
        return UnprotectedLibraryJob(_LOOP)
    require_supported(trainer, objects)
    assert current.session is not None
    kind = type(trainer)
    trainer.__class__ = type(f"Protected{kind.__name__}", (ProtectedTrainer, kind), {})
    quiet, job = Quiet(trainer) if current.session.groups.detached else None, LibraryJob(_LOOP)
    vars(trainer)["_deadpool"] = Training(trainer, objects, quiet, job)
    return job


class ProtectedTrainer(Trainer):  # type: ignore[misc]
    _deadpool: Training

    def train(self) -> None:
        self._deadpool.run(super().train)

    def should_continue_training(self) -> bool:
        return self._deadpool.next_step(super().should_continue_training())

    def batch_generator(self, data_iterable: Any) -> Iterator[Any]:
        return super().batch_generator(self._deadpool.batches.begin(data_iterable))  # type: ignore[no-any-return]

    def train_step(self, data_iterator: Any) -> Any:
        self._deadpool.require_open_step()
        return super().train_step(data_iterator)
