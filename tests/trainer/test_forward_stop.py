"""A forward pass that will be done again ends at its next module, and nothing else does."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from deadpool.errors import Unwind
from deadpool.trainer.recovery.stops import ForwardStop


class Bench:
    def __init__(self) -> None:
        self.aborted = False
        self.stop = ForwardStop(lambda: self.aborted)
        self.model, self.transform = nn.Sequential(nn.Linear(1, 1), nn.ReLU()), nn.ReLU()

    def abort(self) -> None:
        self.aborted = True
        self.stop.begin()


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    bench.stop.end()
    assert not torch_module._global_forward_pre_hooks, "a hook that stays would slow every module down"


def test_the_next_module_of_the_model_stops_it(bench):
    bench.stop.enter_step([bench.model])
    bench.model(torch.zeros(1))
    bench.abort()
    with pytest.raises(Unwind):
        bench.model(torch.zeros(1))
    with pytest.raises(Unwind):
        bench.model[1](torch.zeros(1))


def test_other_modules_other_threads_and_other_moments_are_left_alone(bench):
    bench.stop.enter_step([bench.model])
    bench.abort()
    bench.transform(torch.zeros(1))
    errors = []
    other = threading.Thread(target=lambda: bench.model(torch.zeros(1)))
    hook, threading.excepthook = threading.excepthook, errors.append
    other.start()
    other.join()
    threading.excepthook = hook
    assert errors == []
    bench.stop.leave_step()
    bench.model(torch.zeros(1))


def test_after_rest_nothing_is_left(bench):
    bench.stop.enter_step([bench.model])
    bench.abort()
    bench.stop.end()
    assert not torch_module._global_forward_pre_hooks
    bench.model(torch.zeros(1))


def test_a_halt_from_before_the_loop_stops_no_later_step(bench):
    bench.abort()
    bench.aborted = False
    bench.stop.enter_step([bench.model])
    bench.model(torch.zeros(1))
    assert not torch_module._global_forward_pre_hooks


def test_a_module_that_was_added_after_an_abort_is_known_at_the_next(bench):
    bench.stop.enter_step([bench.model])
    bench.abort()
    with pytest.raises(Unwind):
        bench.model(torch.zeros(1))
    bench.stop.end()
    bench.aborted = False
    bench.model.append(nn.ReLU())
    bench.model(torch.zeros(1))
    bench.abort()
    with pytest.raises(Unwind):
        bench.model[2](torch.zeros(1))


def test_nothing_of_it_is_compiled_into_the_model(bench):
    """Else what a step compiles after an abort would differ from what an undisturbed run compiles."""
    graphs = []

    def backend(graph, _):
        graphs.append([node.target for node in graph.graph.nodes if node.op.startswith("call")])
        return graph.forward

    function = torch.compile(lambda x: bench.model(x).exp(), backend=backend, fullgraph=True)
    bench.stop.enter_step([bench.model])
    bench.abort()
    function(torch.zeros(1))
    assert len(graphs) == 1
    torch.compiler.reset()
