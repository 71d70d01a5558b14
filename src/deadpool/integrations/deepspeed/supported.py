"""What cannot be protected, because a step could not be redone exactly, or because nobody has tried. It is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.activation_checkpointing import checkpointing
from deepspeed.runtime.engine import DeepSpeedEngine

from deadpool.errors import ConfigError

_UNTRIED = "it was never tried with faults: leave it out"


def require_supported(engine: Any) -> None:
    for what, instead in _problems(engine):
        raise ConfigError(f"{what} cannot be protected with DeepSpeed: {instead}")


def _problems(engine: Any) -> Iterator[tuple[str, str]]:
    if type(engine) is not DeepSpeedEngine:
        yield f"a {type(engine).__name__}", "only the plain DeepSpeedEngine was tried, without pipelines"
    if engine.optimizer is None or engine.basic_optimizer is None:
        yield "an engine without an optimizer", "give deepspeed.initialize an optimizer"
    for is_used, what, instead in (*_of_layout(engine), *_of_zero(engine), *_of_training(engine)):
        if is_used:
            yield what, instead


def _of_layout(engine: Any) -> Iterator[tuple[bool, str, str]]:
    yield engine.mpu is not None, "model parallelism (mpu)", _UNTRIED
    yield engine.has_moe_layers, "a mixture of experts", _UNTRIED
    yield engine.autotp_size() > 1, "tensor_parallel", _UNTRIED
    ranks = dist.get_world_size(engine.seq_data_parallel_group)
    yield ranks != dist.get_world_size(), "a data-parallel group of only some ranks", _UNTRIED
    yield dist.get_world_size(engine.data_parallel_group) != ranks, "sequence parallelism", _UNTRIED
    yield dist.get_world_size() == 1, "a job of one rank", "start it with `deadpool run --nodes 2`"


def _of_zero(engine: Any) -> Iterator[tuple[bool, str, str]]:
    settings = engine._config.zero_config
    stage = int(engine.zero_optimization_stage())
    for name in ("offload_optimizer", "offload_param"):
        offload = getattr(settings, name, None)
        used = stage > 0 and offload is not None and str(getattr(offload.device, "value", offload.device)) != "none"
        yield used, name, "state that moves between memories while a step runs was never tried: leave it out"
    has_streams = bool(settings.overlap_comm) and not get_accelerator().is_synchronized_device()
    yield (
        stage > 0 and has_streams,
        "overlap_comm on a device with streams",
        'set "overlap_comm": false in zero_optimization (stage 3 has it on by default)',
    )
    quantized = ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients")
    for name in (*quantized, "zenflow"):
        yield bool(getattr(settings, name, None)), name, _UNTRIED
    yield settings.zero_hpz_partition_size > 1, "zero_hpz_partition_size", _UNTRIED


def _of_training(engine: Any) -> Iterator[tuple[bool, str, str]]:
    kind = type(engine.basic_optimizer)
    untried = ("onebit", "muon", "zeroone", "lamb")
    own = f"{kind.__module__}.{kind.__name__}".lower()
    yield any(each in own for each in untried), f"the optimizer {kind.__name__}", _UNTRIED
    yield (
        engine.training_dataloader is not None,
        "training_data= of deepspeed.initialize",
        "its position cannot be put back; use torchdata's StatefulDataLoader, and protect(engine, data=loader)",
    )
    yield not engine.managed_gradient_accumulation(), "managed_gradient_accumulation = false", _UNTRIED
    yield engine.torch_autocast_enabled(), "torch_autocast", "it was never tried: use bf16 or fp16"
    yield engine.data_efficiency_enabled(), "data_efficiency", _UNTRIED
    yield engine.flops_profiler_enabled(), "flops_profiler", "its hooks cannot be put back: leave it out"
    yield engine.autotuning_enabled(), "autotuning", "it ends the script by itself: leave it out"
    yield engine.is_compiled or engine.is_deepcompile_enabled(), "engine.compile()", _UNTRIED
    yield (
        checkpointing.is_configured(),
        "deepspeed.checkpointing",
        "its buffers are global and were never tried with faults: use torch.utils.checkpoint",
    )
