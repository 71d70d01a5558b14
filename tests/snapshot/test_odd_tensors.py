"""Tensors that torch treats apart: those of its inference mode, and quantized ones. And generators and number formats
that a later step exchanges."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from state_job import Snapshot
from torch import nn

from deadpool.errors import StateError
from deadpool.snapshot.state.rng import capture_rng, restore_rng
from deadpool.snapshot.state.state import ProtectedState


def protect(**objects: object) -> ProtectedState:
    return ProtectedState(objects, replicas={}, rank=0, node_of=lambda rank: rank)


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.register_buffer("mean", torch.zeros(2))

    def step(self) -> None:
        with torch.inference_mode():
            self.mean = self.mean + 1


@pytest.mark.parametrize("cloned", [False, True])
@pytest.mark.parametrize("is_newcomer", [False, True])
def test_buffers_that_inference_mode_makes_come_back(is_newcomer, cloned):
    def make() -> tuple[Centred, ProtectedState]:
        model = Centred()
        objects = {"model": model}
        return model, ProtectedState(objects, replicas={}, rank=0, node_of=lambda rank: rank, clone_host_buffers=cloned)

    model, state = make()
    model.step()
    snapshot = Snapshot(state)
    if is_newcomer:
        model, state = make()
    model.step()
    snapshot.restore(state)
    assert model.mean.tolist() == [1.0, 1.0]
    model.step()
    Snapshot(state)
    assert model.mean.tolist() == [2.0, 2.0]


def test_rank_that_keeps_its_memory_gets_such_a_buffer_back():
    model = Centred()
    state = protect(model=model)
    model.step()
    record = state.record()
    model.step()
    state.restore_record(record)
    assert model.mean.tolist() == [1.0, 1.0]


def test_optimizer_state_of_inference_mode_is_refused():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = protect(model=model, optimizer=optimizer)
    state.record()
    model(torch.ones(1, 2)).sum().backward()
    with torch.inference_mode():
        optimizer.step()
    with pytest.raises(StateError, match=r"optimizer.state\[0\]\['momentum_buffer'\] was made in torch.inference_mode"):
        state.record()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("cloned", [False, True])
def test_quantized_buffers_are_refused(cloned):
    model = nn.Linear(2, 2)
    model.register_buffer("low", torch.quantize_per_tensor(torch.zeros(2), 0.05, 0, torch.qint8))
    with pytest.raises(StateError, match="quantized"):
        ProtectedState(
            {"model": model}, replicas={}, rank=0, node_of=lambda rank: rank, clone_host_buffers=cloned
        ).record()


@pytest.fixture
def numpys_own() -> Iterator[None]:
    yield
    np.random.set_bit_generator(np.random.MT19937(5))


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.Philox, np.random.SFC64])
def test_another_bit_generator_of_numpy_comes_back(kind, numpys_own):
    np.random.set_bit_generator(kind(3))
    np.random.standard_normal(3)
    state = capture_rng()
    expected = np.random.random(4).tolist()
    np.random.set_bit_generator(np.random.MT19937(3))
    restore_rng(state)
    assert np.random.random(4).tolist() == expected


def test_parameters_of_another_dtype_are_named():
    model = nn.Linear(2, 2)
    state = protect(model=model)
    state.record()
    assert state.take_structure_change() is None
    model.double()
    state.record()
    change = state.take_structure_change()
    assert change is not None and change.reshaped == ("model.weight", "model.bias")
