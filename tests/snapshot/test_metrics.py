"""Metrics of torchmetrics: what they have added up comes back, wherever in a protected module they are."""

from __future__ import annotations

from collections import Counter, defaultdict, deque

import numpy as np
import pytest
import torch
from state_job import Snapshot
from torch import nn

from deadpool.errors import StateError
from deadpool.snapshot.state.state import ProtectedState

torchmetrics = pytest.importorskip("torchmetrics")
CLASSES = 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, CLASSES)
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(CLASSES)


METRICS = {
    "sums": lambda: torchmetrics.classification.MulticlassAccuracy(CLASSES),
    "lists": lambda: torchmetrics.classification.MulticlassAUROC(CLASSES),
    "a collection": lambda: torchmetrics.MetricCollection(
        [
            torchmetrics.classification.MulticlassPrecision(CLASSES),
            torchmetrics.classification.MulticlassRecall(CLASSES),
        ]
    ),
}


def update(net, metric, seed):
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randn(8, CLASSES, generator=generator).softmax(-1), torch.randint(CLASSES, (8,), generator=generator)
    net.accuracy.update(*batch)
    metric.update(*batch)


def results(net, metric):
    found = metric.compute()
    return [net.accuracy.compute().item(), found if isinstance(found, dict) else found.item()]


def state_of(net, metric):
    return ProtectedState({"model": net, "metric": metric}, replicas={}, rank=0, node_of=lambda _: 0)


@pytest.mark.parametrize("kind", METRICS)
@pytest.mark.parametrize("rehearsed", [False, True])
def test_newcomer_and_survivor_go_on_with_the_same_sums(kind, rehearsed):
    expected_net, expected = Net(), METRICS[kind]()
    net, metric = Net(), METRICS[kind]()
    for seed in (1, 2):
        update(expected_net, expected, seed)
        update(net, metric, seed)
    state = state_of(net, metric)
    snapshot = Snapshot(state)
    update(net, metric, 9)
    results(net, metric)  # it keeps what it has computed
    newcomer_net, newcomer = Net(), METRICS[kind]()
    if rehearsed:
        update(newcomer_net, newcomer, 10)
    snapshot.restore(state)
    snapshot.restore(state_of(newcomer_net, newcomer))
    update(expected_net, expected, 3)
    for each_net, each in ((net, metric), (newcomer_net, newcomer)):
        update(each_net, each, 3)
        assert results(each_net, each) == results(expected_net, expected)


class Odd(torchmetrics.Metric):
    """Keeps what it has seen in containers of many kinds, none of them declared."""

    def __init__(self):
        super().__init__()
        self.seen, self.counts, self.last = set(), Counter(), deque(maxlen=2)
        self.by_class, self.array = defaultdict(lambda: 0), np.zeros(3)

    def update(self, value):
        self.seen.add(value)
        self.counts[value] += 1
        self.last.append(value)
        self.by_class[value] += 1
        self.array[value] += 1

    def compute(self):
        return [self.seen, self.counts, self.last, dict(self.by_class), self.array.tolist()]


def test_containers_of_all_kinds_come_back():
    metric, newcomer = Odd(), Odd()
    metric.update(1)
    state = state_of(Net(), metric)
    snapshot = Snapshot(state)
    metric.update(2)
    snapshot.restore(state)
    snapshot.restore(state_of(Net(), newcomer))
    for each in (metric, newcomer):
        each.update(0)
        assert each.compute() == [{0, 1}, Counter({1: 1, 0: 1}), deque([1, 0]), {1: 1, 0: 1}, [1.0, 1.0, 0.0]]


def test_metric_that_was_made_later_is_captured_and_missed_loudly():
    def make():
        tracker = torchmetrics.wrappers.MetricTracker(torchmetrics.classification.MulticlassAccuracy(CLASSES))
        tracker.increment()
        return tracker

    tracker = make()
    state = state_of(Net(), tracker)
    tracker.increment()
    tracker.update(torch.tensor([0, 1]), torch.tensor([0, 1]))
    snapshot = Snapshot(state)
    tracker.update(torch.tensor([0, 1]), torch.tensor([1, 2]))
    snapshot.restore(state)
    assert tracker.compute().item() == 1.0
    with pytest.raises(StateError, match="make all metrics before protect"):
        snapshot.restore(state_of(Net(), make()))
