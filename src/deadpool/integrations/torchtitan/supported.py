"""What cannot be protected, because a step could not be redone exactly or was never tried. It is refused with the
reason."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.trainer import Trainer

from deadpool.errors import ConfigError

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_UNTRIED_TRAINERS = ("torchtitan.experiments.", "torchtitan.models.flux.")
_UNTRIED_DISPATCHERS = ("DeepEP", "HybridEP", "MinimalAsyncEP")


def require_supported(trainer: Any, objects: dict[str, Any]) -> None:
    """`objects` are those that the user protects himself."""
    if not isinstance(trainer, Trainer):
        raise ConfigError(f"protect() takes a torchtitan Trainer, and got {type(trainer).__name__}")
    config = trainer.config
    for is_used, what, instead in (
        (trainer.parallel_dims.world_size == 1, "a job of one rank", "start it with `deadpool run --nodes 2`"),
        (config.comm.mode != "default", f"--comm.mode {config.comm.mode}", "leave it out"),
        (_uses_cuda_graphs(trainer), "CUDA graphs that hold collectives", "add --training.disable_cuda_graphs"),
        (config.parallelism.pipeline_parallel_degree > 1, "--parallelism.pipeline_parallel_degree", _NO_PIPELINES),
        (config.training.enable_cpu_offload, "--training.enable_cpu_offload", "leave it out: it was never tried"),
        (config.parallelism.enable_fsdp_symm_mem, "--parallelism.enable_fsdp_symm_mem", _OWN_MEMORY),
        (config.compile.enable_async_tensor_parallel, "--compile.enable_async_tensor_parallel", _OWN_MEMORY),
    ):
        if is_used:
            raise ConfigError(f"{what} cannot be protected with torchtitan: {instead}")
    _require_known_parts(trainer)
    _require_checkpoints_on_main_thread(trainer.checkpointer)
    known = {id(each) for each in objects.values()}
    for name, value in vars(trainer).items():
        if isinstance(value, _GENERATORS) and id(value) not in known:
            raise ConfigError(
                f"the trainer has a generator of its own ({name}): use protect(trainer, {name}=...), or torch's"
            )


_NO_PIPELINES = "it was never tried, because torchtitan's pipelines need a newer torch than this was tested with"
_OWN_MEMORY = "leave it out: memory that ranks share is lost with one of them"


def _uses_cuda_graphs(trainer: Any) -> bool:
    return trainer.device.type == "cuda" and not trainer.config.training.disable_cuda_graphs


def _require_known_parts(trainer: Any) -> None:
    for kind in type(trainer).__mro__:
        if kind.__module__.startswith(_UNTRIED_TRAINERS):
            raise ConfigError(f"{kind.__module__}.{kind.__name__} cannot be protected: it was never tried")
    for optimizer in trainer.optimizers.optimizers:
        if "Muon" in type(optimizer).__name__:
            raise ConfigError("DistMuon cannot be protected: it was never tried, and has communication of its own")
    for part in trainer.model_parts:
        for held in (each for module in part.modules() for each in vars(module).values()):
            if type(held).__name__.startswith(_UNTRIED_DISPATCHERS):
                raise ConfigError(f"{type(held).__name__} cannot be protected: {_OWN_MEMORY}")


def _require_checkpoints_on_main_thread(checkpointer: Any) -> None:
    if not isinstance(checkpointer, CheckpointManager):
        raise ConfigError(f"{type(checkpointer).__name__} cannot be protected: use torchtitan's CheckpointManager")
    if checkpointer.enable and checkpointer.pg is not None:
        raise ConfigError(
            "--checkpoint.async_mode other than disabled cannot be protected: a thread communicates then while a step "
            "is cut off; with DeadPool checkpoints can be rare, because a lost node costs no completed step"
        )
