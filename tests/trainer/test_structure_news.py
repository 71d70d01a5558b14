"""What a newcomer cannot have is named at the next boundary: modules, hooks, groups of parameters and of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from capture_bench import CaptureBench
from device_twin import DeviceTwin
from torch import nn


@pytest.fixture
def bench() -> Iterator[CaptureBench]:
    bench = CaptureBench(DeviceTwin(), granted=9)
    bench.step()
    yield bench
    bench.close()


def found(bench: CaptureBench) -> list[dict[str, Any]]:
    return [each[1] for each in bench.session.said if isinstance(each, tuple) and each[0] == "inexact_script"]


def hook(*_: object) -> None:
    """A forward hook that changes nothing."""


def exchanged(bench: CaptureBench) -> None:
    bench.model[1] = nn.GELU()


def exchanged_beside_the_parameters(bench: CaptureBench) -> None:
    bench.model.add_module("activation", nn.ReLU())


def hooked(bench: CaptureBench) -> None:
    bench.model[0].register_forward_hook(hook)


def regrouped(bench: CaptureBench) -> None:
    first, *others = bench.optimizer.param_groups[0]["params"]
    bench.optimizer.param_groups[0]["params"] = others
    bench.optimizer.param_groups.append({**bench.optimizer.param_groups[0], "params": [first]})


def shared(bench: CaptureBench) -> None:
    bench.model[0].register_buffer("last", bench.model[0].weight.detach()[:2])


@pytest.mark.parametrize(
    ("change", "rule", "named"),
    [
        (exchanged, "replaced_objects", "model.1"),
        (exchanged_beside_the_parameters, "replaced_objects", "model.activation"),
        (hooked, "replaced_objects", "hooks of modules are others than before: 0"),
        (shared, "replaced_objects", "parameters: model.0.last."),
        (regrouped, "replaced_objects", "optimizer.param_groups"),
        (lambda bench: setattr(bench.session.groups, "names", ("default", "7")), "late_groups", "first: 7."),
    ],
)
def test_change_in_a_later_step_is_named_once(
    bench: CaptureBench, change: Callable[[CaptureBench], None], rule: str, named: str
):
    assert found(bench) == []
    change(bench)
    bench.end_step()
    bench.end_step()
    (finding,) = found(bench)
    assert finding["rule"] == rule and named in finding["found"] and finding["step"] == 2


def test_what_comes_and_goes_within_a_step_is_not_named(bench: CaptureBench):
    handle = bench.model[0].register_forward_hook(hook)
    activation, bench.model[1] = bench.model[1], nn.GELU()
    bench.model[1] = activation
    handle.remove()
    bench.end_step()
    assert found(bench) == []
