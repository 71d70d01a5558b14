"""Makes checkpoints as agents and their writers do, in this process, of two ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from deadpool.durable.manifest import FinishTask
from deadpool.durable.part_file import PartWriter
from deadpool.durable.rate import RateLimit
from deadpool.durable.store import Store
from deadpool.durable.writer import finish
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import Copy
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.state.state import ProtectedState
from deadpool_lab.workload.sealed_slot import seal_slot

RANKS = (0, 1)
RECORDING = b"\x01what collectives gave"


def make_model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3, dtype=torch.bfloat16))


class MadeSnapshot:
    """A rank's snapshot in a slot."""

    def __init__(self, rank: int, step: int, objects: dict[str, object], replicas: dict[int, tuple[int, ...]]) -> None:
        self.state = ProtectedState(objects, replicas=replicas, rank=rank, node_of=lambda peer: peer)
        geometry = self.state.measure()
        self.segment = Segment.create(f"test-{rank}", geometry, 1)
        slot, record = self.segment.slot(0), self.state.record()
        start = geometry.offset("record")
        slot[start : start + len(record)] = record
        assert self.state.copy_bulk(slot, geometry, cancelled=lambda: False)
        seal = seal_slot(
            slot, geometry, rank=rank, version=Version(Generation(1, 1), step), extent=self.state.extent(record)
        )
        self.copy = Copy(seal=seal, geometry=geometry, peers=RANKS)

    def close(self) -> None:
        self.state.release_slots()
        self.segment.close()


class MadeRank(MadeSnapshot):
    """Both ranks have the same parameters, and buffers of their own."""

    def __init__(self, rank: int, step: int, shifted: float = 0.0) -> None:
        self.model = make_model()
        for name, buffer in self.model.named_buffers():
            if buffer.is_floating_point():
                buffer += rank if name.endswith("mean") else 0
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        for param in self.model.parameters():
            param.grad = torch.ones_like(param)
        self.optimizer.step()
        with torch.no_grad():
            next(self.model.parameters()).add_(shifted)
        replicas = {id(param): RANKS for param in self.model.parameters()}
        super().__init__(rank, step, {"model": self.model, "optimizer": self.optimizer}, replicas)


def name_of(step: int) -> str:
    return f"step-{step:09d}-test-g1.1-1"


def write_parts(
    store: Store, step: int, bytes_per_s: float = 0.0, make: Callable[[int, int], MadeSnapshot] = MadeRank
) -> tuple[Copy, ...]:
    copies = []
    for rank in RANKS:
        made = make(rank, step)
        PartWriter(store, name_of(step), RateLimit(bytes_per_s)).write(made.copy, made.segment.slot(0), RECORDING)
        copies.append(made.copy)
        made.close()
    return tuple(copies)


def finish_task(where: str, step: int, copies: tuple[Copy, ...], keep_last: int = 0, keep_every: int = 0) -> FinishTask:
    return FinishTask(
        where=where,
        name=name_of(step),
        nice=0,
        job="test",
        step=step,
        positions=2,
        per_node=1,
        keep_last=keep_last,
        keep_every=keep_every,
        copies=copies,
    )


def write_whole(
    store: Store,
    where: str,
    step: int,
    keep_last: int = 0,
    keep_every: int = 0,
    make: Callable[[int, int], MadeSnapshot] = MadeRank,
) -> tuple[Copy, ...]:
    copies = write_parts(store, step, make=make)
    finish(finish_task(where, step, copies, keep_last, keep_every))
    return copies
