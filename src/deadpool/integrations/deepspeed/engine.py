"""A DeepSpeed engine, protected.

`protect` names the objects of an engine that have to survive, and the adapter for the rest. What cannot be protected,
because a step could not be redone exactly, or because nobody has tried, is refused. `EngineAdapter` drops what a step
that was cut off left in the engine, and says what ranks hold alike. `EngineState` is what an engine changes in a step
beside parameters and optimizer state: counters, loss scaler, scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.activation_checkpointing import checkpointing
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from deadpool.integrations.deepspeed.leftovers import Bf16, Leftovers, Unfused, Zero12
from deadpool.integrations.deepspeed.refusals import DeepSpeedRefusal
from deadpool.integrations.deepspeed.relies_on import LIBRARIES
from deadpool.integrations.deepspeed.zero3 import Zero3
from deadpool.integrations.library_check import require_suitable
from deadpool.integrations.plain_state import is_plain, plain_attributes, set_plain_attributes
from deadpool.integrations.refusals import Refused
from deadpool.trainer import current
from deadpool.trainer.adapters.plain import Adapter
from deadpool.trainer.interface import Job
from deadpool.trainer.protect import join

_KINDS: dict[type, type[Leftovers]] = {
    FP16_UnfusedOptimizer: Unfused,
    BF16_Optimizer: Bf16,
    DeepSpeedZeroOptimizer: Zero12,
    DeepSpeedZeroOptimizer_Stage3: Zero3,
}

_UNTRIED = "it was never tried with faults: leave it out"


def leftovers_of(engine: Any) -> Leftovers:
    kind = type(engine.optimizer)
    if kind in _KINDS:
        return _KINDS[kind](engine)
    if isinstance(engine.optimizer, Optimizer):
        return Leftovers(engine)
    raise Refused(
        DeepSpeedRefusal.OTHER_WRAPPER,
        f"an engine whose optimizer is a {kind.__name__} cannot be protected, because it was never tried: ZeRO stages "
        "1 to 3 are accepted, and stage 0 with optimizers of torch",
    )


class EngineAdapter(Adapter):
    name = "deepspeed"

    def __init__(self, engine: Any, leftovers: Leftovers) -> None:
        self._engine, self._leftovers = engine, leftovers

    def reset(self) -> None:
        engine = self._engine
        engine._running_engine_step = engine._manual_backward_expected = engine.inside_no_sync_ctxt = False
        engine.losses = None
        for timer in engine.timers.get_timers().values():
            timer.reset()  # one that runs refuses to be started
        engine.tput_timer.started = False
        self._leftovers.drop()

    def rehearsing(self) -> AbstractContextManager[None]:
        return self._leftovers.rehearsing()

    def seated(self, resume_step: int) -> None:
        self._leftovers.seated()

    def replicas(self) -> dict[int, tuple[int, ...]]:
        ranks = tuple(sorted(dist.get_process_group_ranks(self._engine.seq_data_parallel_group)))
        return {id(each): ranks for each in self._leftovers.replicated()} if len(ranks) > 1 else {}


_OF_ENGINE = (
    "global_steps",
    "global_samples",
    "micro_steps",
    "skipped_steps",
    "warn_unscaled_loss",
    "_global_grad_norm",
    "_is_gradient_accumulation_boundary",
    "_step_applied",
    "_unmanaged_backward_count",
)
_OF_OPTIMIZER = (
    "custom_loss_scaler",
    "external_loss_scale",
    "overflow",
    "_global_grad_norm",
    "_is_gradient_accumulation_boundary",
)
_OF_CONFIG = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
"""A script may change them between two steps, by engine.set_train_batch_size()."""


class EngineState:
    def __init__(self, engine: Any, leftovers: Leftovers) -> None:
        self._engine, self._leftovers = engine, leftovers

    def state_dict(self) -> dict[str, Any]:
        assert current.session is not None
        if not current.session.groups.detached:  # a rehearsal that failed in a step has half of one behind it
            self._require_boundary()
        self._leftovers.reach_boundary()
        engine = self._engine
        return {
            "engine": _values(engine, _OF_ENGINE),
            "optimizer": _values(engine.optimizer, _OF_OPTIMIZER),
            "config": _values(engine._config, _OF_CONFIG),
            "scaler": [plain_attributes(each) for each in self._scalers()],
            "scheduler": [plain_attributes(each) for each in self._schedulers()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        engine = self._engine
        for owner, name in ((engine, "engine"), (engine.optimizer, "optimizer"), (engine._config, "config")):
            for key, value in state[name].items():
                setattr(owner, key, value)
        for owners, name in ((self._scalers(), "scaler"), (self._schedulers(), "scheduler")):
            for owner, values in zip(owners, state[name], strict=True):
                set_plain_attributes(owner, values)

    def _scalers(self) -> list[Any]:
        found = (getattr(self._engine.optimizer, name, None) for name in ("loss_scaler", "loss_scale_config"))
        return [each for each in found if each is not None]

    def _schedulers(self) -> list[Any]:
        scheduler = self._engine.lr_scheduler
        return [] if scheduler is None or isinstance(scheduler, LRScheduler) else [scheduler]

    def _require_boundary(self) -> None:
        """Gradients that a step leaves to the next one would be lost if that one is redone."""
        if self._leftovers.has_gradients():
            raise Refused(
                DeepSpeedRefusal.BETWEEN_UPDATES,
                "a step has ended between two updates: gradients are left that no engine.step() has used. Put all "
                "micro batches of an update (gradient_accumulation_steps of them) into one `with step:`, each with "
                "engine.backward(loss) and engine.step()",
            )


def _values(owner: object, names: tuple[str, ...]) -> dict[str, Any]:
    """A norm on a device is left out: to read it would wait for the device. The next step computes another."""
    found = {name: getattr(owner, name) for name in names if hasattr(owner, name)}
    return {name: value if is_plain(value) else None for name, value in found.items()}


def protect(engine: DeepSpeedEngine, /, *, force: bool = False, **objects: object) -> Job:
    """Protects the engine, and returns the job whose `steps` is the training loop. Call it after
    `deepspeed.initialize`, once.

    `objects` are further ones whose state training changes, as for `deadpool.protect`: data above all. What belongs to
    the engine is found by itself. A DeepSpeed in which something is missing that this relies on is refused, and with
    `force` accepted. In a script that DeadPool did not start the same loop trains unprotected, and a note says so.
    """
    if current.session is not None:
        require_suitable(LIBRARIES, force=force)
        require_supported(engine)
    _require_no_part_of(engine, objects)
    leftovers = leftovers_of(engine)
    found: dict[str, Any] = {"model": leftovers.model, "optimizer": leftovers.torch_optimizer}
    found["engine"] = EngineState(engine, leftovers)
    if isinstance(engine.lr_scheduler, LRScheduler):  # DeepSpeed's own leave half of it out of their state_dict
        found["scheduler"] = engine.lr_scheduler
    for name in found.keys() & objects.keys():
        raise Refused(
            DeepSpeedRefusal.TAKEN_NAME,
            f"protect({name}=...): the engine's own is protected under this name, use another one",
        )
    found |= objects
    return join().protect(adapters=[EngineAdapter(engine, leftovers)], **found)


def _require_no_part_of(engine: DeepSpeedEngine, objects: dict[str, object]) -> None:
    parts = {
        id(engine): "the engine",
        id(engine.module): "its model",
        id(engine.optimizer): "its optimizer",
        id(engine.basic_optimizer): "its optimizer",
    }
    for name, value in objects.items():
        if id(value) in parts:
            raise Refused(
                DeepSpeedRefusal.PASSED_TWICE,
                f"protect({name}=...) got {parts[id(value)]}, which is protected already: leave it out",
            )


def require_supported(engine: Any) -> None:
    for refusal, what, instead in _problems(engine):
        raise Refused(refusal, f"{what} cannot be protected with DeepSpeed: {instead}")


def _problems(engine: Any) -> Iterator[tuple[DeepSpeedRefusal, str, str]]:
    if type(engine) is not DeepSpeedEngine:
        instead = "only the plain DeepSpeedEngine was tried, without pipelines"
        yield DeepSpeedRefusal.OTHER_ENGINE, f"a {type(engine).__name__}", instead
    if engine.optimizer is None or engine.basic_optimizer is None:
        yield DeepSpeedRefusal.NO_OPTIMIZER, "an engine without an optimizer", "give deepspeed.initialize an optimizer"
    for is_used, refusal, what, instead in (*_of_layout(engine), *_of_zero(engine), *_of_training(engine)):
        if is_used:
            yield refusal, what, instead


_Problem = tuple[bool, DeepSpeedRefusal, str, str]


def _of_layout(engine: Any) -> Iterator[_Problem]:
    yield engine.mpu is not None, DeepSpeedRefusal.MPU, "model parallelism (mpu)", _UNTRIED
    yield engine.has_moe_layers, DeepSpeedRefusal.EXPERTS, "a mixture of experts", _UNTRIED
    yield engine.autotp_size() > 1, DeepSpeedRefusal.TENSOR_PARALLEL, "tensor_parallel", _UNTRIED
    ranks = dist.get_world_size(engine.seq_data_parallel_group)
    is_partial = ranks != dist.get_world_size()
    yield is_partial, DeepSpeedRefusal.PARTIAL_DATA_PARALLEL, "a data-parallel group of only some ranks", _UNTRIED
    has_sequences = dist.get_world_size(engine.data_parallel_group) != ranks
    yield has_sequences, DeepSpeedRefusal.SEQUENCE_PARALLEL, "sequence parallelism", _UNTRIED
    instead = "start it with `deadpool run --nodes 2`"
    yield dist.get_world_size() == 1, DeepSpeedRefusal.ONE_RANK, "a job of one rank", instead


_OFFLOADS = {"offload_optimizer": DeepSpeedRefusal.OFFLOAD_OPTIMIZER, "offload_param": DeepSpeedRefusal.OFFLOAD_PARAM}
_UNTRIED_OF_ZERO = {
    "zero_quantized_weights": DeepSpeedRefusal.QUANTIZED_WEIGHTS,
    "zero_quantized_nontrainable_weights": DeepSpeedRefusal.QUANTIZED_FROZEN,
    "zero_quantized_gradients": DeepSpeedRefusal.QUANTIZED_GRADIENTS,
    "zenflow": DeepSpeedRefusal.ZENFLOW,
}


def _of_zero(engine: Any) -> Iterator[_Problem]:
    settings = engine._config.zero_config
    stage = int(engine.zero_optimization_stage())
    for name, refusal in _OFFLOADS.items():
        offload = getattr(settings, name, None)
        used = stage > 0 and offload is not None and str(getattr(offload.device, "value", offload.device)) != "none"
        yield used, refusal, name, "state that moves between memories while a step runs was never tried: leave it out"
    has_streams = bool(settings.overlap_comm) and not get_accelerator().is_synchronized_device()
    yield (
        stage > 0 and has_streams,
        DeepSpeedRefusal.OVERLAP,
        "overlap_comm on a device with streams",
        'set "overlap_comm": false in zero_optimization (stage 3 has it on by default)',
    )
    for name, refusal in _UNTRIED_OF_ZERO.items():
        yield bool(getattr(settings, name, None)), refusal, name, _UNTRIED
    yield settings.zero_hpz_partition_size > 1, DeepSpeedRefusal.HPZ, "zero_hpz_partition_size", _UNTRIED


def _of_training(engine: Any) -> Iterator[_Problem]:
    kind = type(engine.basic_optimizer)
    untried = ("onebit", "muon", "zeroone", "lamb")
    own = f"{kind.__module__}.{kind.__name__}".lower()
    is_untried = any(each in own for each in untried)
    yield is_untried, DeepSpeedRefusal.OTHER_OPTIMIZER, f"the optimizer {kind.__name__}", _UNTRIED
    yield (
        engine.training_dataloader is not None,
        DeepSpeedRefusal.TRAINING_DATA,
        "training_data= of deepspeed.initialize",
        "its position is not put back; use torch's DataLoader, and protect(engine, data=loader)",
    )
    accumulates = not engine.managed_gradient_accumulation()
    yield accumulates, DeepSpeedRefusal.OWN_ACCUMULATION, "managed_gradient_accumulation = false", _UNTRIED
    instead = "it was never tried: use bf16 or fp16"
    yield engine.torch_autocast_enabled(), DeepSpeedRefusal.AUTOCAST, "torch_autocast", instead
    yield engine.data_efficiency_enabled(), DeepSpeedRefusal.DATA_EFFICIENCY, "data_efficiency", _UNTRIED
    instead = "its hooks cannot be put back: leave it out"
    yield engine.flops_profiler_enabled(), DeepSpeedRefusal.FLOPS_PROFILER, "flops_profiler", instead
    instead = "it ends the script by itself: leave it out"
    yield engine.autotuning_enabled(), DeepSpeedRefusal.AUTOTUNING, "autotuning", instead
    yield engine.is_compiled or engine.is_deepcompile_enabled(), DeepSpeedRefusal.COMPILED, "engine.compile()", _UNTRIED
    yield (
        checkpointing.is_configured(),
        DeepSpeedRefusal.CHECKPOINTING,
        "deepspeed.checkpointing",
        "its buffers are global and were never tried with faults: use torch.utils.checkpoint",
    )
