"""A small training run with every kind of state, and a slot as an agent would have it, for the tests of state."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau

from deadpool.protocol.seal import Geometry
from deadpool.snapshot.state.state import ProtectedState


class Data:
    """An iterator with a position, shuffled by Python's generator and augmented by numpy's."""

    def __init__(self) -> None:
        self.position, self.order = 0, []

    def __next__(self) -> torch.Tensor:
        if not self.order:
            self.order = random.sample(range(10), 10)
        self.position += 1
        return torch.full((6, 8), float(self.order.pop())) + torch.from_numpy(np.random.randn(6, 8)).float()

    def state_dict(self):
        return {"position": self.position, "order": list(self.order)}

    def load_state_dict(self, state):
        self.position, self.order = state["position"], state["order"]


class Net(nn.Module):
    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, width), nn.BatchNorm1d(width), nn.Linear(width, 8, bias=False)
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long), persistent=False)
        self.amax = 0.0

    def get_extra_state(self):
        return {"amax": self.amax}

    def set_extra_state(self, state):
        self.amax = state["amax"]

    def forward(self, x):
        self.calls = self.calls + 1  # another tensor each time
        self.amax = max(self.amax, float(x.abs().max()))
        return self.last(nn.functional.dropout(torch.relu(self.norm(self.first(x))), 0.3)) / max(self.amax, 1.0)


def adamw(params):
    return torch.optim.AdamW(params, lr=0.01)


class Job:
    """A small training run and its protected state."""

    def __init__(self, make_optimizer=adamw, make_model=Net, make_scheduler=None, seed=1, replicas=(), own=()) -> None:
        """`own` are parameters that no other rank has."""
        torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
        self.model = make_model()
        self.optimizer = make_optimizer([param for param in self.model.parameters() if param.requires_grad])
        self.scheduler = (make_scheduler or (lambda o: CosineAnnealingLR(o, 20)))(self.optimizer)
        self.data = Data()
        objects = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "data": self.data}
        ranks = {id(param): tuple(replicas) for name, param in self.model.named_parameters() if name not in own}
        self.state = ProtectedState(objects, replicas=ranks, rank=0, node_of=lambda rank: rank)

    def loss(self):
        loss = self.model(next(self.data)).float().pow(2).mean()
        loss.backward()
        return loss.detach().item()

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self.loss()
        self.optimizer.step()
        self.scheduler.step(loss) if isinstance(self.scheduler, ReduceLROnPlateau) else self.scheduler.step()
        return loss

    def train(self, steps: int) -> list[float]:
        return [self.step() for _ in range(steps)]


class Snapshot:
    """A slot as the agent would keep it."""

    def __init__(self, state: ProtectedState, geometry: Geometry | None = None) -> None:
        self.geometry = geometry or state.measure()
        self.slot = memoryview(bytearray(b"\xa5" * self.geometry.slot_bytes))
        record = state.record()
        self.extent = state.extent(record)
        start = self.geometry.offset("record")
        self.slot[start : start + len(record)] = record
        assert state.copy_bulk(self.slot, self.geometry, cancelled=lambda: False)
        self.record = record

    def restore(self, state: ProtectedState) -> None:
        state.restore(self.slot, self.geometry, self.extent)
