"""What a newcomer cannot have is named at the next boundary: modules, hooks, groups of parameters and of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from capture_stage import Stage
from device_twin import DeviceTwin
from torch import nn


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage(DeviceTwin(), granted=9)
    stage.step()
    yield stage
    stage.close()


def found(stage: Stage) -> list[dict[str, Any]]:
    return [each[1] for each in stage.session.said if isinstance(each, tuple) and each[0] == "inexact_script"]


def hook(*_: object) -> None:
    """A forward hook that changes nothing."""


def exchanged(stage: Stage) -> None:
    stage.model[1] = nn.GELU()


def exchanged_beside_the_parameters(stage: Stage) -> None:
    stage.model.add_module("activation", nn.ReLU())


def hooked(stage: Stage) -> None:
    stage.model[0].register_forward_hook(hook)


def regrouped(stage: Stage) -> None:
    first, *others = stage.optimizer.param_groups[0]["params"]
    stage.optimizer.param_groups[0]["params"] = others
    stage.optimizer.param_groups.append({**stage.optimizer.param_groups[0], "params": [first]})


def shared(stage: Stage) -> None:
    stage.model[0].register_buffer("last", stage.model[0].weight.detach()[:2])


@pytest.mark.parametrize(
    ("change", "rule", "named"),
    [
        (exchanged, "replaced_objects", "model.1"),
        (exchanged_beside_the_parameters, "replaced_objects", "model.activation"),
        (hooked, "replaced_objects", "hooks of modules are others than before: 0"),
        (shared, "replaced_objects", "parameters: model.0.last."),
        (regrouped, "replaced_objects", "optimizer.param_groups"),
        (lambda stage: setattr(stage.session.groups, "names", ("default", "7")), "late_groups", "first: 7."),
    ],
)
def test_change_in_a_later_step_is_named_once(stage: Stage, change: Callable[[Stage], None], rule: str, named: str):
    assert found(stage) == []
    change(stage)
    stage.end_step()
    stage.end_step()
    (finding,) = found(stage)
    assert finding["rule"] == rule and named in finding["found"] and finding["step"] == 2


def test_what_comes_and_goes_within_a_step_is_not_named(stage: Stage):
    handle = stage.model[0].register_forward_hook(hook)
    activation, stage.model[1] = stage.model[1], nn.GELU()
    stage.model[1] = activation
    handle.remove()
    stage.end_step()
    assert found(stage) == []
