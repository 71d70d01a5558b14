"""Low-precision parameters with float32 master weights train like float32 parameters, and are protected completely."""

from __future__ import annotations

import torch
from torch import nn

from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.state.state import ProtectedState
from deadpool_lab.workload.master_weights import MasterAdamW

SETTINGS = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def parameters(dtype: torch.dtype) -> nn.ParameterList:
    torch.manual_seed(0)
    return nn.ParameterList(torch.randn(7, 5).bfloat16().to(dtype) for _ in range(3))


def train(model: nn.ParameterList, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        for parameter in model:
            noise = torch.Generator().manual_seed(step)
            parameter.grad = torch.randn(7, 5, generator=noise).bfloat16().to(parameter.dtype)
        optimizer.step()
        optimizer.zero_grad()


def test_trains_as_float32_does():
    low, high = parameters(torch.bfloat16), parameters(torch.float32)
    masters = MasterAdamW(low, **SETTINGS)
    train(low, masters, range(5))
    train(high, torch.optim.AdamW(high, **SETTINGS), range(5))
    for parameter, expected in zip(low, high, strict=True):
        torch.testing.assert_close(masters.state[parameter]["master"], expected.detach())
        assert torch.equal(parameter, masters.state[parameter]["master"].bfloat16())


def test_snapshot_brings_back_what_bf16_would_have_lost():
    model = parameters(torch.bfloat16)
    optimizer = MasterAdamW(model, **SETTINGS)
    state = ProtectedState({"model": model, "optimizer": optimizer}, replicas={}, rank=0, node_of=lambda _: 0)
    train(model, optimizer, range(3))
    geometry = state.measure()
    arena = Segment.create("masters", geometry, 1)
    record, slot, start = state.record(), arena.slot(0), geometry.offset("record")
    slot[start : start + len(record)] = record
    assert state.copy_bulk(slot, geometry, cancelled=lambda: False)
    extent, digest = state.extent(record), state.digest()
    train(model, optimizer, range(3, 5))
    assert state.digest() != digest
    state.restore(slot, geometry, extent)
    assert state.digest() == digest
    master = optimizer.state[model[0]]["master"]
    assert master.dtype == torch.float32 and not torch.equal(master, master.bfloat16().float())
    state.release_slots()
    slot.release()
    arena.close()
