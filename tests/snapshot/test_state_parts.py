"""What the audit compares: which part of a state differs, and whether that decides."""

from __future__ import annotations

import time
from collections import OrderedDict, deque

import numpy as np
import pytest
import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

from deadpool.protocol.messages import Part
from deadpool.snapshot.record.record import encode
from deadpool.snapshot.state.loaders import LoaderPosition
from deadpool.snapshot.state.state import ProtectedState
from deadpool.snapshot.state.state_parts import _parts_of_object, split_floats


class Average:
    """Of weights, as people write it."""

    def __init__(self) -> None:
        self.state = {"num_updates": 1, "decay": 0.5, "shadow": {"w": torch.ones(2)}, "name": "ema", "on": True}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 2)
        self.unused = nn.Linear(3, 2)
        self.register_buffer("adjacency", torch.eye(3).to_sparse())
        self.extra = {"amax": 1.0}

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


class Bench:
    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model, self.average = Net(), Average()
        self.optimizer = torch.optim.SGD(self.model.last.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)
        objects = {
            "model": self.model,
            "optimizer": self.optimizer,
            "average": self.average,
            "scheduler": self.scheduler,
        }
        self.state = ProtectedState(objects, replicas={}, rank=0, node_of=int)
        for param in self.model.parameters():
            param.grad = torch.ones_like(param)
        self._before = self._parts()

    def _parts(self) -> dict[tuple[str, str], Part]:
        found = self.state.parts(taken=self.model.last.parameters())
        return {(part.kind, part.name): part for part in found}

    def differing(self) -> dict[str, bool]:
        """What differs from the beginning, and whether that decides."""
        now = self._parts()
        assert now.keys() == self._before.keys()
        return {" ".join(key): part.decides for key, part in now.items() if part != self._before[key]}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_nothing_differs(bench):
    assert bench.differing() == {}


@pytest.mark.parametrize(("name", "value"), [("num_updates", 2), ("name", "swa"), ("on", False)])
def test_a_number_a_text_or_a_flag_of_an_object_decides(bench, name, value):
    bench.average.state[name] = value
    assert bench.differing() == {"object average": True}


def test_a_tensor_of_an_object_decides(bench):
    bench.average.state["shadow"]["w"][1] = 2.0
    assert bench.differing() == {"object average": True}


def test_a_float_of_an_object_may_be_a_time(bench):
    bench.average.state["decay"] = time.time()
    assert bench.differing() == {"floats of average": False}


def test_a_float_of_an_object_of_torch_is_none(bench):
    bench.scheduler.gamma = 0.2
    assert bench.differing() == {"object scheduler": True}


def test_a_sparse_buffer_decides(bench):
    bench.model.adjacency._values()[1] = 3.0
    assert bench.differing() == {"buffer model.adjacency": True}


def test_extra_state_decides_with_its_floats(bench):
    bench.model.extra = {"amax": 2.0}
    assert bench.differing() == {"object extra state of model": True}


def test_a_gradient_decides_if_it_was_taken(bench):
    bench.model.last.weight.grad[0, 0] = 2.0
    bench.model.unused.weight.grad[0, 0] = 2.0
    assert bench.differing() == {"gradient model.last.weight": True, "gradient model.unused.weight": False}


def test_modes_decide(bench):
    bench.model.unused.weight.requires_grad_(False)
    assert bench.differing() == {"modes of modules and parameters": True}


def test_an_attribute_of_a_module_decides_nothing(bench):
    bench.model.cached = True
    assert bench.differing() == {"object attributes of modules": False}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, {"a": 1.0}], [1, {"a": 2.0}]),
        ((1.0, "x"), (2.0, "x")),
        (OrderedDict(a=(1.0, 2)), OrderedDict(a=(3.0, 2))),
        (deque([1.0], 3), deque([2.0], 3)),
        (complex(1, 2), complex(1, 3)),
        (np.float64(1), np.float64(2)),
    ],
)
def test_floats_anywhere_are_taken_out(one, other):
    (rest, floats), (other_rest, others) = split_floats(encode(one, "x")), split_floats(encode(other, "x"))
    assert rest == other_rest and floats != others


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1.0, 1], [1.0, 2]),
        (1, 1.0),
        (torch.ones(()), torch.zeros(())),
        (np.ones(2), np.zeros(2)),
        (np.int64(1), np.int64(2)),
        (1 << 80, 1 << 81),
        ("a", "b"),
        (True, False),
    ],
)
def test_the_rest_stays(one, other):
    (rest, _), (other_rest, _) = split_floats(encode(one, "x")), split_floats(encode(other, "x"))
    assert rest != other_rest


def test_the_position_of_a_loader_is_the_same_in_another_process():
    """Its script has made other iterators there; the batches that follow are the same."""
    first, other = LoaderBench(), LoaderBench()
    next(first.held)
    next(first.held)
    next(other.held)
    assert first.position() != other.position()
    other.held = iter(other.loader)
    other.load(first)
    assert first.position() == other.position()
    assert next(first.held).tolist() == next(other.held).tolist()
    assert first.position() == other.position()


class LoaderBench:
    """The script holds an iterator, which it made before its loop."""

    def __init__(self) -> None:
        self.loader = StatefulDataLoader(torch.arange(8), batch_size=2)
        self.held = iter(self.loader)
        self._position = LoaderPosition("loader", self.loader)

    def load(self, other: LoaderBench) -> None:
        self._position.load_state_dict(other._position.state_dict())

    def position(self) -> list[Part]:
        data = encode(self._position.state_dict(), "loader")
        return list(_parts_of_object("loader", self._position, data))
