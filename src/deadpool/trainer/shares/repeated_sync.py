"""Finds scripts that let DDP synchronise the same gradients more than once in a step.

DDP adds up the whole gradient of a parameter, with what an earlier backward of the step has averaged already. With all
ranks that does no harm: an average of averages that are alike is the same average. While some ranks have no process it
is less, because only the ranks that are there add it up, and the sum is divided by all. Nothing would show it but the
loss. Such a job has to wait for a spare; one that is shrunk already has to end.

Whether a gradient is there when the next one arrives can be seen only then, since `zero_grad()` may come between
forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from deadpool.errors import ConfigError

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
