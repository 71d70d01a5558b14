"""Writes that torch does not count, by sums of a device: host memory stands for its memory, if there is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deadpool.snapshot.identity.uncounted_writes import DeviceSums

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def plan() -> Any:
    names = {"a": torch.float32, "b": torch.bfloat16, "c": torch.float64}
    tensors = {
        ("param", "model", name, ""): torch.ones(40, 5, dtype=kind, device=DEVICE) for name, kind in names.items()
    }
    return SimpleNamespace(locals={**tensors, ("state", "optimizer", 0, "step"): torch.ones(3, device=DEVICE)})


@pytest.fixture
def sums() -> DeviceSums:
    return DeviceSums(lambda tensor: tensor.device.type == DEVICE)


def settle() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_single_element_that_is_written_uncounted_is_found(sums, plan, name):
    sums.take(plan)
    plan.locals["param", "model", name, ""].data[7, 3] = 2.0
    sums.compare()
    settle()
    assert sums.read() and sums.written == (f"model.{name}",)


def test_what_torch_counts_is_not_found_nor_what_an_optimizer_does_later(sums, plan):
    sums.take(plan)
    plan.locals["param", "model", "a", ""].add_(1.0)
    sums.compare()
    plan.locals["param", "model", "b", ""].data.add_(1.0)  # as a fused optimizer
    sums.compare()
    settle()
    assert not sums.read()


def test_verdict_that_is_still_on_its_way_is_read_later(sums, plan, monkeypatch):
    there = [False]
    monkeypatch.setattr(
        "deadpool.snapshot.identity.uncounted_writes._bring_home",
        lambda keys, differ: SimpleNamespace(keys=keys, differ=differ.cpu(), is_there=lambda: there[0]),
    )
    sums.take(plan)
    plan.locals["param", "model", "a", ""].data.zero_()
    sums.compare()
    assert not sums.read()
    there[0] = True
    assert sums.read()
