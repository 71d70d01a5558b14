"""How gradients of several shares become one sum, and scripts for which they cannot.

`GradientSync`: which backwards of a step send gradients, and what their sum is divided by (rule 30, carried ranks).

The backward of a carried rank's share sends nothing: its gradients stay where they are, and go with those of the
carrier's own share. A script that switches sending on again inside such a share would send more often than the ranks
that carry none, and these would add gradients of another backward. So that is refused, before anything is sent.

`RepeatedSync` finds scripts that let DDP synchronise the same gradients more than once in a step.

DDP adds up the whole gradient of a parameter, with what an earlier backward of the step has averaged already. With
all ranks that does no harm: an average of averages that are alike is the same average. While some ranks have no
process it is less, because only the ranks that are there add it up, and the sum is divided by all. Nothing would
show it but the loss. Such a job has to wait for a spare; one that is shrunk already has to end.

Whether a gradient is there when the next one arrives can be seen only then, since `zero_grad()` may come between
forward and backward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from deadpool.errors import ConfigError
from deadpool.trainer.adapters.ddp import ddp_modules
from deadpool.trainer.adapters.fsdp2 import param_groups, sharded_modules

Marks = list[tuple[int, int] | None]
"""The marks of each parameter of a module: which gradient it has, and how often it was written to."""


class RepeatedSync:
    def __init__(self) -> None:
        self.found = False
        self.refuses = False
        self._before: dict[int, Marks] = {}  # by id of the module, at its first synchronised forward of the step
        self._forward_hooks: list[Any] = []
        self._arrival_hooks: list[Any] = []

    def watch(self, modules: Iterable[DistributedDataParallel], *, refuse: bool) -> None:
        """`refuse`: the first one that is found ends the script."""
        self.end()
        self.refuses = refuse
        self._forward_hooks = [module.register_forward_pre_hook(self._before_forward) for module in modules]

    def end(self) -> None:
        self.refuses = False
        self.enter_step()
        _remove(self._forward_hooks)

    def enter_step(self) -> None:
        self._before.clear()
        _remove(self._arrival_hooks)

    def _before_forward(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and module.require_backward_grad_sync):
            return
        params = [param for param in module.parameters() if param.requires_grad]
        marks: Marks = [(id(p.grad), p.grad._version) if p.grad is not None else None for p in params]
        before = self._before.setdefault(id(module), marks)
        if len(before) != len(marks):
            return
        for param, then, now in zip(params, before, marks, strict=True):
            if now is not None and now != then:
                self._watch_arrival(param)

    def _watch_arrival(self, param: nn.Parameter) -> None:
        def arriving(_: Tensor) -> None:
            if param.grad is not None and bool(param.grad.count_nonzero()):
                self._note()

        self._arrival_hooks.append(param.register_hook(arriving))

    def _note(self) -> None:
        self.found = True
        if self.refuses:
            raise ConfigError(
                "DistributedDataParallel synchronised the same gradients twice in a step while ranks are carried: what "
                "the first backward has averaged would count too little. Use `model.no_sync()` for all backwards of a "
                "share but the last one (docs/howto/shrink.md)"
            )


def _remove(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()
    hooks.clear()


Refuse = Callable[[], NoReturn]


class _HeldBack(Protocol):
    """A module that sends no gradients for now."""

    @property
    def sends(self) -> bool: ...

    def put_back(self) -> None: ...


class GradientSync:
    """The synchronisation of gradients in the protected modules of one rank. Only the main thread uses it."""

    def __init__(self, modules: Sequence[nn.Module], rank: int) -> None:
        self._modules, self._rank = modules, rank
        self._held_back: list[_HeldBack] = []
        self._made_sums: list[Any] = []  # parameter groups of FSDP that average when no rank is carried
        self.repeated = RepeatedSync()

    def hold_back(self, carried: int) -> None:
        """Enters the share of a carried rank. The buffers that DDP sends before a forward are sent once all the same:
        in the first forward of a step, whichever share it belongs to."""
        refuse = functools.partial(_refuse, carried, self._rank)
        self._held_back = [
            *(_HeldBackDdp(each, refuse) for each in ddp_modules(self._modules)),
            *(_HeldBackFsdp(each, refuse) for each in sharded_modules(self._modules)),
        ]

    def release(self, carried: int, *, failed: bool) -> None:
        """Leaves the share: all is as it was before it, also where an exception ended it (`failed`)."""
        held_back, self._held_back = self._held_back, []
        sends = any(each.sends for each in held_back)
        for each in held_back:
            each.put_back()
        if sends and not failed:
            _refuse(carried, self._rank)

    def count_all_ranks(self, shrunk: bool) -> None:
        """FSDP averages over the processes that take part; while some rank has none it has to divide by all ranks. Each
        parameter group decides for itself, and one for which the script has chosen sums stays as it is. DDP divides by
        the size of its group, which is that of all ranks."""
        for group in self._made_sums:
            group.force_sum_reduction_for_comms = False
        self._made_sums = []
        if shrunk:
            self._made_sums = [each for each in self._fsdp_groups() if not each.force_sum_reduction_for_comms]
            self.repeated.watch(ddp_modules(self._modules), refuse=True)
        elif self.repeated.refuses:
            self.repeated.end()
        for group in self._made_sums:
            group.force_sum_reduction_for_comms = True

    def watch_first_step(self) -> None:
        """Whether the script synchronises as a job that may shrink has to: `repeated.found` says so at its end."""
        if not self.repeated.refuses:
            self.repeated.watch(ddp_modules(self._modules), refuse=False)

    def first_step_seen(self) -> None:
        if not self.repeated.refuses:
            self.repeated.end()

    def _fsdp_groups(self) -> list[Any]:
        return [each for module in sharded_modules(self._modules) for each in param_groups(module._get_fsdp_state())]


def _refuse(carried: int, carrier: int) -> NoReturn:
    raise ConfigError(
        f"the script switched the synchronisation of gradients on in the share of rank {carried}, which rank {carrier} "
        "carries: gradients would be added up twice. Switch it on in the rank's own share only (`share.is_own and "
        "micro == last`), or accumulate under `model.no_sync()` (docs/howto/shrink.md)"
    )


class _HeldBackDdp:
    """DDP looks at its flag in forward: what is set later counts for the next forward."""

    def __init__(self, module: DistributedDataParallel, refuse: Refuse) -> None:
        self._module, self._refuse = module, refuse
        self._sent = module.require_backward_grad_sync
        module.require_backward_grad_sync = False
        self._hook = module.register_forward_pre_hook(self._before_forward)

    @property
    def sends(self) -> bool:
        return bool(self._module.require_backward_grad_sync)

    def put_back(self) -> None:
        self._hook.remove()
        self._module.require_backward_grad_sync = self._sent

    def _before_forward(self, *_: object) -> None:
        if self.sends:
            self._refuse()


class _HeldBackFsdp:
    """fully_shard looks at its flags in backward, so their setter is replaced: False is what they are already."""

    def __init__(self, module: Any, refuse: Refuse) -> None:
        self._module, self._refuse = module, refuse
        groups = param_groups(module._get_fsdp_state())
        self._sent = [(group, group.reduce_grads, group.all_reduce_grads) for group in groups]
        module.set_requires_gradient_sync(False, recurse=False)
        vars(module)["set_requires_gradient_sync"] = self._set

    @property
    def sends(self) -> bool:
        return any(group.reduce_grads for group, *_ in self._sent)

    def put_back(self) -> None:
        vars(self._module).pop("set_requires_gradient_sync", None)
        for group, reduces, reduces_all in self._sent:
            group.reduce_grads, group.all_reduce_grads = reduces, reduces_all

    def _set(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        if requires_gradient_sync:
            self._refuse()
