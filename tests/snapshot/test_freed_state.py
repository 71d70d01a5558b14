"""The memory of a parked state is freed and allocated again; a restore then gives what it would have given."""

from __future__ import annotations

import torch
from torch import nn

from deadpool.protocol.seal import Extent
from deadpool.snapshot.state.freed_state import FreedState
from deadpool.snapshot.state.state import ProtectedState


def make(seed: int) -> tuple[nn.Module, ProtectedState]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(16, 32)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, ProtectedState({"model": model, "optimizer": optimizer}, replicas={}, rank=0, node_of=lambda rank: 0)


make(0)  # torch opens a file for good the first time


def capture(state: ProtectedState) -> tuple[bytearray, object, Extent]:
    geometry = state.measure()
    record = state.record()
    slot = bytearray(geometry.slot_bytes)
    assert state.copy_bulk(memoryview(slot), geometry, cancelled=lambda: False)
    start = geometry.offset("record")
    slot[start : start + len(record)] = record
    return slot, geometry, state.extent(record)


def test_restored_after_it_was_freed() -> None:
    _, lost = make(1)
    slot, geometry, extent = capture(lost)
    model, spare = make(2)
    spare.measure()
    freed = spare.free_parked()
    assert freed.nbytes > 0 and model[0].weight.untyped_storage().nbytes() == 0
    freed.allocate()
    spare.restore(memoryview(slot), geometry, extent)  # type: ignore[arg-type]
    assert spare.digest() == lost.digest()
    again = capture(spare)  # the addresses that were planned before are gone
    _, third = make(3)
    third.restore(memoryview(again[0]), again[1], again[2])  # type: ignore[arg-type]
    assert third.digest() == lost.digest()


def test_a_storage_with_bytes_of_others_is_kept() -> None:
    whole = torch.arange(10.0)
    freed = FreedState([whole[:4], whole[5:]])
    freed.free()
    assert freed.nbytes == 0 and whole[4] == 4
    both = FreedState([whole[:4], whole[4:], whole[:4]])
    both.free()
    assert whole.untyped_storage().nbytes() == 0
    both.allocate()
    assert whole.shape == (10,)
