"""Captures the modes of parameters and modules: frozen or not, training or evaluating, with or without a gradient.

A newcomer needs them, because it has not run the steps in which the script changed them. The contents of gradients are
not state, but their existence is: an optimizer moves a parameter whose gradient is zero, by momentum or weight decay,
and leaves a parameter without a gradient alone.
"""

from __future__ import annotations

from typing import Any

from deadpool.snapshot.state.objects import ModuleTrees, Objects

Modes = dict[str, Any]


def capture_modes(objects: Objects, trees: ModuleTrees, with_gradient: list[int]) -> Modes:
    """Names parameters by their index among the protected ones, and modules by their path."""
    params = objects.params.values()
    return {
        "frozen": [index for index, param in enumerate(params) if not param.requires_grad],
        "with_gradient": with_gradient,
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
