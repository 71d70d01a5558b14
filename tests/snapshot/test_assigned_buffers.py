"""Buffers that a script assigns, expands, resizes: after a recovery the same objects lie in the same memory again, and
in a new process nothing else is overwritten."""

from __future__ import annotations

import pytest
import torch
from state_job import Snapshot
from torch import Tensor, nn

from deadpool.snapshot.state.state import ProtectedState

DATA = torch.arange(12.0).view(3, 4)


class Buffers(nn.Module):
    def __init__(self, **buffers: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)


class Trial:
    """A module of which a boundary is captured; restored are the module itself, whose memory is kept or loaded, and one
    of a new process."""

    def __init__(self, clones: bool, **buffers: Tensor) -> None:
        self.clones = clones
        self.module, self.state = self.make(**{name: each.clone() for name, each in buffers.items()})
        self.newcomer, self.newcomer_state = self.make(**buffers)

    def make(self, **buffers: Tensor) -> tuple[Buffers, ProtectedState]:
        module = Buffers(**buffers)
        objects = {"model": module}
        return module, ProtectedState(
            objects, replicas={}, rank=0, node_of=lambda rank: rank, clone_host_buffers=self.clones
        )


@pytest.fixture(params=[False, True], ids=["record", "cloned"])
def clones(request) -> bool:
    """Whether buffers are cloned, as on a device."""
    return request.param


@pytest.mark.parametrize("way", ["kept", "loaded"])
def test_survivor_gets_the_objects_of_the_boundary(clones, way):
    trial = Trial(clones, cur=torch.ones(3), prev=torch.zeros(3))
    module = trial.module
    module.prev, module.cur = module.cur, torch.full((3,), 2.0)
    prev, cur = module.prev, module.cur
    snapshot = Snapshot(trial.state)
    module.prev = module.cur
    module.cur.add_(5)
    module.cur = torch.full((3,), 9.0)
    if way == "kept":
        trial.state.restore_record(snapshot.record)
    else:
        snapshot.restore(trial.state)
    assert module.prev is prev and module.cur is cur
    assert (prev.tolist(), cur.tolist()) == ([1.0] * 3, [2.0] * 3)


def test_slice_of_the_data_is_not_overwritten(clones):
    data = DATA.clone()
    trial = Trial(clones, last=torch.zeros(4))
    trial.module.last = data[0]
    snapshot = Snapshot(trial.state)
    trial.module.last = data[1]
    trial.newcomer.last = data[2]  # in a rehearsal
    trial.state.restore_record(snapshot.record)
    snapshot.restore(trial.newcomer_state)
    assert data.equal(DATA)
    assert trial.module.last.data_ptr() == data[0].data_ptr()
    assert trial.newcomer.last.equal(DATA[0])


def test_version_before_the_last_one(clones):
    """The object of that boundary is gone if nobody holds it; if the script does, it is the one."""
    data = DATA.clone()
    trial = Trial(clones, last=torch.zeros(4), kept=torch.zeros(4))
    trial.module.last, trial.module.kept = data[0], torch.ones(4)
    kept = trial.module.kept
    older = Snapshot(trial.state)
    trial.module.last, trial.module.kept = data[1], torch.zeros(4)
    Snapshot(trial.state)
    older.restore(trial.state)
    assert data.equal(DATA) and trial.module.last.equal(DATA[0])
    assert trial.module.kept is kept


def test_one_tensor_under_two_names_and_a_part_of_a_third(clones):
    trial = Trial(clones, a=torch.zeros(4), b=torch.ones(4), part=torch.zeros(2), one=torch.zeros(()))
    module = trial.module
    module.a = module.b = torch.arange(4.0)
    module.part, module.one = module.b[1:3], module.a[3]
    snapshot = Snapshot(trial.state)
    for restored, state in ((trial.newcomer, trial.newcomer_state), (module, trial.state)):
        snapshot.restore(state)
        assert restored.a is restored.b
        restored.b.mul_(10)
        assert (restored.part.tolist(), restored.one.item()) == ([10.0, 20.0], 30.0)
        restored.part.zero_()
        assert restored.a.tolist() == [0.0, 0.0, 0.0, 30.0]


def test_part_of_a_buffer_that_nobody_assigned(clones):
    trial = Trial(clones, whole=torch.arange(6.0), part=torch.zeros(2))
    trial.module.part = trial.module.whole[4:]
    snapshot = Snapshot(trial.state)
    whole = trial.newcomer.whole
    snapshot.restore(trial.newcomer_state)
    assert trial.newcomer.whole is whole
    trial.newcomer.part.add_(1)
    assert whole.tolist() == [0.0, 1.0, 2.0, 3.0, 5.0, 6.0]


def test_tensor_that_gets_other_memory(clones):
    trial = Trial(clones, a=torch.ones(3))
    buffer, address = trial.module.a, trial.module.a.data_ptr()
    snapshot = Snapshot(trial.state)
    other = torch.full((3,), 7.0)
    buffer.data = other
    trial.state.restore_record(snapshot.record)
    assert trial.module.a is buffer and buffer.data_ptr() == address
    assert (buffer.tolist(), other.tolist()) == ([1.0] * 3, [7.0] * 3)


def test_expanded(clones):
    trial = Trial(clones, a=torch.ones(1).expand(2, 3), b=torch.zeros(3))
    trial.module.a, trial.newcomer.a = (torch.ones(1).expand(2, 3) for _ in range(2))
    trial.module.b = torch.arange(3.0).expand(4, 3)
    snapshot = Snapshot(trial.state)
    a = trial.module.a
    trial.module.a = torch.zeros(2, 3)
    trial.state.restore_record(snapshot.record)
    assert trial.module.a is a
    for restored, state in ((trial.newcomer, trial.newcomer_state), (trial.module, trial.state)):
        snapshot.restore(state)
        assert (restored.a.shape, restored.a.stride()) == ((2, 3), (0, 0)) and bool((restored.a == 1).all())
        assert restored.b.stride() == (0, 1) and restored.b.equal(torch.arange(3.0).expand(4, 3))


def test_resized(clones):
    trial = Trial(clones, a=torch.ones(2))
    Snapshot(trial.state)
    trial.module.a.resize_(4).fill_(2)
    snapshot = Snapshot(trial.state)
    trial.module.a.resize_(6).fill_(3)
    trial.state.restore_record(snapshot.record)
    snapshot.restore(trial.newcomer_state)
    for restored in (trial.module, trial.newcomer):
        assert restored.a.tolist() == [2.0] * 4
        restored.a.resize_(50)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (3, 3)),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.eye(4).to_sparse_bsc((2, 2)),
    ],
    ids=["coalesced", "not_coalesced", "csr", "bsc"],
)
def test_sparse(make, clones):
    trial = Trial(clones, a=torch.eye(2).to_sparse())
    trial.module.a = make()
    snapshot = Snapshot(trial.state)
    a = trial.module.a
    trial.module.a = torch.eye(2).to_sparse()
    trial.state.restore_record(snapshot.record)
    assert trial.module.a is a
    snapshot.restore(trial.newcomer_state)
    for restored in (trial.module.a, trial.newcomer.a):
        assert (restored.layout, restored.shape, restored._nnz()) == (make().layout, make().shape, make()._nnz())
        assert restored.to_dense().equal(make().to_dense())
        if restored.layout == torch.sparse_coo:
            assert restored.is_coalesced() == make().is_coalesced()
            assert restored._values().equal(make()._values())


def test_buffers_that_become_none_appear_or_vanish(clones):
    trial = Trial(clones, a=torch.ones(2), b=torch.ones(2), c=torch.ones(2))
    module = trial.module
    module.a = None
    del module.b
    module.register_buffer("d", torch.full((2,), 4.0), persistent=False)
    snapshot = Snapshot(trial.state)
    module.a, module.c = torch.zeros(2), None
    trial.state.restore_record(snapshot.record)
    snapshot.restore(trial.newcomer_state)
    for restored in (module, trial.newcomer):
        assert (restored.a, hasattr(restored, "b"), restored.c.tolist()) == (None, False, [1.0, 1.0])
        assert restored.d.tolist() == [4.0, 4.0] and "d" not in restored.state_dict()


def test_refused_snapshot_changes_nothing():
    trial = Trial(False, a=torch.ones(2))
    trial.module.a = torch.zeros(2)
    snapshot = Snapshot(trial.state)
    foreign, state = trial.make(a=torch.full((2,), 5.0))
    foreign.register_parameter("more", nn.Parameter(torch.zeros(1)))
    state = ProtectedState({"model": foreign}, replicas={}, rank=0, node_of=lambda rank: rank)
    before = foreign.a
    with pytest.raises(Exception, match="more"):
        snapshot.restore(state)
    assert foreign.a is before and before.tolist() == [5.0, 5.0]
