"""What each of DeepSpeed's optimizers keeps while a step runs, and where it keeps its state. Stage 3 is in zero3.py."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer


class Leftovers:
    """What a cut-off step leaves in a plain torch optimizer, which ZeRO stage 0 uses in fp32: all of it is the same on
    all ranks.
    """

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.torch_optimizer: Optimizer = self._find_torch_optimizer()
        self._groups: list[Any] = []
        self.reach_boundary()

    def _find_torch_optimizer(self) -> Optimizer:
        found: Optimizer = self.engine.optimizer
        return found

    @property
    def model(self) -> nn.Module:
        """What protect() should see as the model."""
        found: nn.Module = self.engine.module
        return found

    def reach_boundary(self) -> None:
        """ZeRO puts another list there while one group is stepped, and so does a checkpoint that is loaded."""
        self._groups = self.torch_optimizer.param_groups

    def has_gradients(self) -> bool:
        return any(each.grad is not None for each in self._model_parameters())

    def drop(self) -> None:
        """Drops what a step left that was cut off anywhere."""
        self.torch_optimizer.param_groups = self._groups
        for each in self._model_parameters():
            each.grad = None
        for each in self._masters():
            each.grad = None

    def seated(self) -> None:
        """The state is that of a version. Compute anew what follows from it."""

    def rehearsing(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def replicated(self) -> Iterable[Tensor]:
        """Parameters that are the same on all ranks, together with their optimizer state."""
        return self._masters()

    def _model_parameters(self) -> Iterator[Tensor]:
        return iter(self.engine.module.parameters())

    def _masters(self) -> Iterator[Tensor]:
        return (each for group in self._groups for each in group["params"])


class _Wrapped(Leftovers):
    def _find_torch_optimizer(self) -> Optimizer:
        found: Optimizer = self.engine.optimizer.optimizer
        return found


class Unfused(_Wrapped):
    """Stage 0 in fp16 or bf16: one master copy per parameter, on all ranks."""

    def replicated(self) -> Iterator[Tensor]:
        yield from self._masters()
        for group in self.engine.optimizer.fp16_groups:
            yield from group


class Partitioned(_Wrapped):
    """Masters and moments are split among ranks, and parameters are the same on all."""

    def drop(self) -> None:
        super().drop()
        forget_backward(self.engine.optimizer._backward_hook_state)

    def seated(self) -> None:
        """Every parameter holds views of its moments, for the user's reading. A load may have put other tensors there;
        at the first step there are none."""
        optimizer = self.engine.optimizer
        optimizer._hp_optimizer_states_linked = False
        for group in self._lp_groups():
            for each in group:
                if each._hp_mapping is not None:
                    each._hp_mapping.optim_fragment = None
        if all(self.torch_optimizer.state.get(master) for master in self._masters()):
            optimizer._lazy_init_hp_params_optimizer_state()

    def replicated(self) -> Iterator[Tensor]:
        for group in self._lp_groups():
            yield from group

    @abstractmethod
    def _lp_groups(self) -> list[list[Any]]:
        """The parameters of the model, in the precision that it computes in."""


class Bf16(Partitioned):
    """Stage 0 in bf16 with gradients in fp32, which are added up in flat buffers."""

    def _lp_groups(self) -> list[list[Any]]:
        groups: list[list[Any]] = self.engine.optimizer.bf16_groups
        return groups

    def has_gradients(self) -> bool:
        return any(any(group) for group in self.engine.optimizer.fp32_groups_has_gradients)

    def drop(self) -> None:
        super().drop()
        self.engine.optimizer.clear_hp_grads()


class Zero12(Partitioned):
    def _lp_groups(self) -> list[list[Any]]:
        groups: list[list[Any]] = self.engine.optimizer.bit16_groups
        return groups

    def has_gradients(self) -> bool:
        optimizer = self.engine.optimizer
        kept = [*optimizer.averaged_gradients.values(), *optimizer.all_grad_tensors.values()]
        accumulated = (getattr(each, "grad_accum", None) for group in self._lp_groups() for each in group)
        return super().has_gradients() or any(each is not None for each in (*kept, *accumulated))

    def drop(self) -> None:
        super().drop()
        optimizer = self.engine.optimizer
        for group in self._lp_groups():
            for each in group:
                each.grad_accum = None
        for bucket in optimizer.ipg_buckets.values():
            bucket.clear()
            bucket.buffer.clear()
            bucket.reuse_events.clear()
            bucket.index = 0
        optimizer._release_ipg_buffers()
        optimizer.ready_for_gradients = False
        optimizer.params_already_reduced[:] = [False] * len(optimizer.params_already_reduced)
        optimizer.reset_partition_gradient_structures()
        for kept in (optimizer.averaged_gradients, optimizer.all_grad_tensors, optimizer.previous_reduced_grads):
            kept.clear()  # in place: every parameter holds the first of them
        optimizer.extra_large_param_to_reduce.clear()
        optimizer.micro_step_id = -1
        optimizer._coalesce_grad_reduction = False


def forget_backward(hooks: Any) -> None:
    hooks.reset_for_new_step()
    hooks.backward_active_depth = hooks.remaining_grad_acc_hooks = 0
