"""A training run on a CUDA device with the kinds of state that are special there, and a slot in registered memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deadpool.protocol.seal import Extent, Geometry
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.copying.cuda import runtime
from deadpool.snapshot.copying.slot_copy import SlotCopy
from deadpool.snapshot.state.state import ProtectedState

DEVICE = "cuda"


class MasterSgd(torch.optim.Optimizer):
    """bf16 parameters, fp32 master copies and momentum: as large models are trained."""

    def __init__(self, params: Any, lr: float = 1e-5) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                if not state:
                    state["master"] = param.float()
                    state["momentum"] = torch.zeros_like(state["master"])
                state["momentum"].mul_(0.9).add_(param.grad.float())
                state["master"].sub_(state["momentum"], alpha=group["lr"])
                param.copy_(state["master"])


OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "foreach": lambda params: torch.optim.AdamW(params, lr=0.01, foreach=True),
    "fused": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "capturable": lambda params: torch.optim.AdamW(params, lr=0.01, foreach=True, capturable=True),
    "master": MasterSgd,
}


class Net(nn.Module):
    """Large and small tensors, one that is not contiguous, buffers that forward writes, dropout."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Linear(64, width, dtype=dtype)
        self.norm = nn.BatchNorm1d(width, dtype=dtype)
        self.last = nn.Linear(width, 64, dtype=dtype)
        self.turned = nn.Parameter(torch.randn(64, 32, dtype=dtype).t())
        self.register_buffer("calls", torch.zeros((), dtype=torch.long), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        hidden = torch.dropout(torch.relu(self.norm(self.first(x))), 0.1, self.training)
        return self.last(hidden) @ self.turned.t()


class CudaJob:
    def __init__(self, kind: str = "foreach", *, width: int = 8192, seed: int = 1, **options: Any) -> None:
        torch.manual_seed(seed)
        self.model = Net(width, torch.bfloat16 if kind == "master" else torch.float32).to(DEVICE)
        self.optimizer = OPTIMIZERS[kind](list(self.model.parameters()))
        self.inputs = torch.randn(16, 64, device=DEVICE, dtype=next(self.model.parameters()).dtype)
        objects = {"model": self.model, "optimizer": self.optimizer}
        self.state = ProtectedState(objects, replicas={}, rank=0, node_of=int, **options)

    def backward(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.model(self.inputs).float().square().mean()
        loss.backward()
        return loss.detach()

    def step(self) -> Tensor:
        loss = self.backward()
        self.optimizer.step()
        return loss

    def train(self, count: int) -> list[float]:
        return [loss.item() for loss in [self.step() for _ in range(count)]]


class RegisteredSlot:
    """Two slots as the agent would keep them, and the trainer registers them."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.segment = Segment.create("gpu-test", geometry, 2)
        self.segment.prefault()
        self.slot = self.segment.slot(0)
        self.extent: Extent | None = None
        self.record = b""

    def open(self, state: ProtectedState) -> SlotCopy:
        """At the boundary."""
        self.take_record(state)
        return self.open_late(state)

    def take_record(self, state: ProtectedState) -> None:
        """At the boundary, where no slot is free yet."""
        self.record = state.record()
        self.extent = state.extent(self.record)

    def open_late(self, state: ProtectedState) -> SlotCopy:
        """In any thread, until the optimizer steps."""
        start = self.geometry.offset("record")
        self.slot[start : start + len(self.record)] = self.record
        return state.open_copy(self.slot, self.geometry)

    def restore(self, state: ProtectedState) -> None:
        assert self.extent is not None
        state.restore(self.slot, self.geometry, self.extent)


@contextmanager
def registered_slot(state: ProtectedState) -> Iterator[RegisteredSlot]:
    slot = RegisteredSlot(state.measure())
    address = int(np.frombuffer(slot.segment.view(), np.uint8).ctypes.data)
    found = runtime()
    assert found is not None, "torch has loaded no libcudart that can be found"
    found.register(address, slot.segment.total_bytes)
    try:
        yield slot
    finally:
        torch.cuda.synchronize()
        state.release_slots()
        found.unregister(address)
        slot.slot.release()
        slot.segment.close()
