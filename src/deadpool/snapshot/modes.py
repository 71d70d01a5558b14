"""Captures the modes of parameters and modules: frozen or not, training or evaluating, with or without a gradient.

A newcomer needs them, because it has not run the steps in which the script changed them. The contents of gradients are
not state, but their existence is: an optimizer moves a parameter whose gradient is zero, by momentum or weight decay,
and leaves a parameter without a gradient alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deadpool.snapshot.objects import ModuleTrees, Objects

Modes = dict[str, Any]


def capture_modes(objects: Objects, trees: ModuleTrees) -> Modes:
    """Names parameters by their index among the protected ones, and modules by their path."""
    params = objects.params.values()
    return {
        "frozen": [index for index, param in enumerate(params) if not param.requires_grad],
        "with_gradient": [index for index, param in enumerate(params) if param.grad is not None],
        "evaluating": {
            name: [path for path, module in modules.items() if not module.training]
            for name, modules in trees.paths.items()
        },
    }


def restore_modes(objects: Objects, trees: ModuleTrees, modes: Modes) -> None:
    frozen = set(modes["frozen"])
    for index, param in enumerate(objects.params.values()):
        if param.requires_grad is (index in frozen):
            param.requires_grad_(index not in frozen)
    for name, paths in modes["evaluating"].items():
        evaluating = set(paths)
        for path, module in trees.paths[name].items():
            module.training = path not in evaluating


def restore_gradients(objects: Objects, modes: Modes) -> None:
    """Sets zeros where there was a gradient, and None elsewhere. Frameworks must have been reset before."""
    having = set(modes["with_gradient"])
    for index, param in enumerate(objects.params.values()):
        param.grad = _zeros(param) if index in having else None


def _zeros(param: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.zeros_like(param)
