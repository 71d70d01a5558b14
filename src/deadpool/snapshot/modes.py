"""What parameters and modules are set to, beside their values: learning or frozen, in training or not, and which have a
gradient. Plain values; a newcomer has not run the steps in which a script changed them.

The contents of gradients are no state, but that there is one is: an optimizer moves a parameter whose gradient is zero,
by its momentum or its weight decay, and leaves one without a gradient alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deadpool.snapshot.objects import ModuleTrees, Objects

Modes = dict[str, Any]


def capture_modes(objects: Objects, trees: ModuleTrees) -> Modes:
    """Parameters by their place among the protected ones, modules by their path."""
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
    """Zeros where there was a gradient, none where there was none. Frameworks are reset before."""
    having = set(modes["with_gradient"])
    for index, param in enumerate(objects.params.values()):
        param.grad = _zeros(param) if index in having else None


def _zeros(param: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.zeros_like(param)
