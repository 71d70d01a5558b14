"""ZeRO stage 3 after a fault.

`Parts` and `Zero3`: ZeRO stage 3: parameters are split among ranks too, and gathered while they are needed.

The state of a rank is its part of every parameter (`ds_tensor`) and of the masters. What module.parameters() holds
at a boundary is either empty or a gathered copy of small parameters. So all ranks drop gathered parameters when they
are seated, and gather them again. The coordinator learns in its first two steps in which order modules run, and then
prefetches and releases by it. Ranks that have learnt differently would run different collectives. So all ranks get a
new one, as after deepspeed.initialize. Neither changes a number: gathering copies.

`WithMasters`: ZeRO stage 3 takes the parameters out of its torch optimizer between two updates, and keeps their
state in it.

It puts one flat master at a time into its group, steps the optimizer, and takes the master out again. protect()
looks for parameters in groups, so it gets this view of the optimizer: the same state, hooks and hyperparameters, and
the masters in their groups.

`UnusedParameters` refuses steps of ZeRO stage 3 in which a parameter gets no gradient.

Stage 3 writes a gradient over that of the step before, and only where there is one. A parameter that a step does not
use is therefore updated by a gradient of an earlier step. That gradient is no part of what is protected, so a redone
step would differ.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, MutableMapping
from typing import Any

from deepspeed.runtime.zero import parameter_offload, partitioned_param_coordinator
from deepspeed.runtime.zero.partition_parameters import AllGatherCoalescedHandle, ZeroParamStatus, free_param
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator
from torch import Tensor, nn
from torch.optim import Optimizer

from deadpool.integrations.deepspeed.leftovers import Leftovers, forget_backward
from deadpool.integrations.deepspeed.refusals import DeepSpeedRefusal
from deadpool.integrations.refusals import Refused
from deadpool.trainer import current


class WithMasters(Optimizer):
    def __init__(self, zero: Any) -> None:
        # Not initialised as an optimizer: everything is that of the one behind it, also if a checkpoint replaces it.
        self._zero = zero
        vars(self)["state"] = vars(self)["param_groups"] = None  # behind the properties: protect() looks for the names
        self._optimizer_step_pre_hooks = zero.optimizer._optimizer_step_pre_hooks
        self._optimizer_step_post_hooks = zero.optimizer._optimizer_step_post_hooks

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self._zero.optimizer.state

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        zero = self._zero
        groups = enumerate(zero.optimizer.param_groups)
        return [_Group(group, [*_masters_of(zero, index)]) for index, group in groups]

    def step(self, closure: Any = None) -> Any:
        raise AssertionError("DeepSpeed steps the optimizer behind this one")


def _masters_of(zero: Any, group: int) -> Iterator[Tensor]:
    for index, master in enumerate(zero.fp32_partitioned_groups_flat):
        if zero.sub_group_to_group_id[index] == group:
            yield master


class _Group(MutableMapping[str, Any]):
    """A group of the optimizer, but for its parameters."""

    def __init__(self, group: dict[str, Any], masters: list[Tensor]) -> None:
        self._group, self._masters = group, masters

    def __getitem__(self, key: str) -> Any:
        return self._masters if key == "params" else self._group[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._group[key] = value

    def __delitem__(self, key: str) -> None:
        del self._group[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._group)

    def __len__(self) -> int:
        return len(self._group)


class UnusedParameters:
    """Watches which gradients the first micro batch of a step brings."""

    def __init__(self, zero: Any) -> None:
        self._zero, self._seen = zero, set[int]()
        self.is_watching = current.session is not None
        self._partition_grads, self._pre_step = zero.partition_grads, zero._pre_step
        zero.partition_grads, zero._pre_step = self._gradients_come, self._step_begins

    def forget(self) -> None:
        self._seen.clear()

    def _gradients_come(self, params: list[Any], partitions: list[Any]) -> Any:
        if self._zero.micro_step_id == 0:
            self._seen.update(each.ds_id for each in params)
        return self._partition_grads(params, partitions)

    def _step_begins(self) -> None:
        missing = [each for group in self._zero.fp16_groups for each in group if each.ds_id not in self._seen]
        self._seen.clear()
        if missing and self.is_watching:
            names = ", ".join(self._zero.param_names[each] for each in missing[:4])
            raise Refused(
                DeepSpeedRefusal.UNUSED_PARAMETER,
                f"{names}: no gradient in the first micro batch of a step. ZeRO stage 3 then uses a gradient of an "
                "earlier step, which cannot be redone exactly: use every parameter in each micro batch, freeze those "
                "that are not used (requires_grad = False) before deepspeed.initialize, or take stage 2",
            )
        self._pre_step()


class Parts(nn.Module):
    """The model as protect() should see it: with the parts of this rank for its parameters."""

    def __init__(self, model: nn.Module, parts: dict[str, Tensor]) -> None:
        super().__init__()
        self.model = model
        self._parts = parts

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, Any]]:
        yield from self._parts.items()


class Zero3(Leftovers):
    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self._offload = engine.optimizer.parameter_offload
        self._stack_depth = len(parameter_offload.FWD_MODULE_STACK)
        self._external = {module: dict(module._external_params) for module in self._modules()}
        self._unused = UnusedParameters(engine.optimizer)

    def _find_torch_optimizer(self) -> Optimizer:
        return WithMasters(self.engine.optimizer)

    @property
    def model(self) -> nn.Module:
        optimizer = self.engine.optimizer
        flat = {f"flat {index}": each for index, each in enumerate(optimizer.fp16_partitioned_groups_flat)}
        trained = {id(each) for group in optimizer.fp16_groups for each in group}
        frozen = {name: each.ds_tensor for name, each in self._named() if id(each) not in trained}
        return Parts(self.engine.module, flat | frozen)

    def has_gradients(self) -> bool:
        optimizer = self.engine.optimizer
        kept = any(each is not None for each in optimizer.averaged_gradients.values())
        return kept or any(bucket.params for bucket in optimizer.ipg_buckets.values()) or super().has_gradients()

    def drop(self) -> None:
        for each in self._model_parameters():
            each.grad = None
        optimizer = self.engine.optimizer
        for group in optimizer.optimizer.param_groups:
            group["params"] = []
        for master in optimizer.fp32_partitioned_groups_flat:
            master.grad = None
        for bucket in optimizer.ipg_buckets.values():
            bucket.clear_params()
        for identity in optimizer.params_already_reduced:
            optimizer.params_already_reduced[identity] = False
        optimizer.averaged_gradients = {}
        optimizer.param_reduce_events.clear()
        optimizer.inf_or_nan_tracker.zero_()
        optimizer.micro_step_id = 0
        optimizer._offload_boundary_param_ids = set()
        optimizer._coalesce_grad_reduction = False
        self._unused.forget()
        forget_backward(optimizer._backward_hook_state)
        self._forget_gathered()

    def seated(self) -> None:
        self._forget_gathered()
        # Zeros for a fresh process and for one that has computed before. Every gradient is written anew in each step:
        # UnusedParameters has made sure of that.
        self.engine.optimizer.grad_partitions_flat_buffer.zero_()

    def replicated(self) -> list[Tensor]:
        return []

    @contextlib.contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Ranks compare the order in which modules run. In a rehearsal there is nobody to compare it with."""
        name = "assert_ints_same_as_other_ranks"
        original = getattr(partitioned_param_coordinator, name)
        setattr(partitioned_param_coordinator, name, lambda _: None)
        self._unused.is_watching = False
        try:
            yield
        finally:
            setattr(partitioned_param_coordinator, name, original)
            self._unused.is_watching = True

    def _forget_gathered(self) -> None:
        self.engine.module.ds_inflight_param_registry.clear()  # never waited for: their groups were aborted
        AllGatherCoalescedHandle.free_buffer()
        for _, each in self._named():
            each.ds_active_sub_modules.clear()
            each.is_external_param = False
            if each.ds_status is not ZeroParamStatus.NOT_AVAILABLE:
                free_param(each)
        del parameter_offload.FWD_MODULE_STACK[self._stack_depth :]
        for module in self._modules():
            module._external_params.clear()
            module._external_params.update(self._external.get(module, {}))
            if hasattr(module._parameters, "_in_forward"):
                module._parameters._in_forward = False
            module.ds_recompute_parameters.clear()
            for counter in ("applied_pre_backward_ref_cnt", "ds_grads_remaining"):
                if counter in vars(module):
                    setattr(module, counter, 0)
        self._offload.param_coordinator = _new_coordinator(self._offload)

    def _modules(self) -> Iterator[Any]:
        return (each for each in self.engine.module.modules() if hasattr(each, "_external_params"))

    def _named(self) -> Iterator[tuple[str, Any]]:
        return iter(self.engine.module.named_parameters())


def _new_coordinator(offload: Any) -> PartitionedParameterCoordinator:
    """Makes a coordinator as the constructor of DeepSpeedZeRoOffload does."""
    return PartitionedParameterCoordinator(
        prefetch_bucket_sz=offload._prefetch_bucket_sz,
        max_reuse_distance_in_numel=offload._max_reuse_distance_in_numel,
        max_available_parameters_in_numel=offload._max_available_parameters_in_numel,
        allgather_stream=offload._DeepSpeedZeRoOffload__allgather_stream,
        inflight_param_registry=offload.module.ds_inflight_param_registry,
        prefetch_nvme=False,
        timers=offload.timers,
        zero_quantized_weights=offload.zero_quantized_weights,
        zero_quantized_nontrainable_weights=offload.zero_quantized_nontrainable_weights,
        fast_sharding_for_leaf_module=offload.fast_sharding_for_leaf_module,
        log_trace_cache_warnings=offload.log_trace_cache_warnings,
    )
