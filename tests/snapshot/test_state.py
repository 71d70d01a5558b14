"""Protected state is captured and restored, and the run continues to the bit as if nothing had happened."""

from __future__ import annotations

import itertools
import threading

import pytest
import torch
from state_job import Job, Net, Snapshot, adamw
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, SequentialLR

from deadpool.errors import ArenaError
from deadpool.snapshot.state.state import ProtectedState


def sgd(params):
    return torch.optim.SGD(params, lr=0.01, momentum=0.9)


OPTIMIZERS = {
    "adamw": adamw,
    "foreach": lambda params: torch.optim.AdamW(params, lr=0.01, foreach=True, amsgrad=True),
    "fused": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "tensor_lr": lambda params: torch.optim.AdamW(params, lr=torch.tensor(0.01), foreach=False),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.01),
    "momentum": sgd,
    "adafactor": lambda params: torch.optim.Adafactor(params, lr=0.01),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.01),
    "nadam": lambda params: torch.optim.NAdam(params, lr=0.01),
    "rprop": lambda params: torch.optim.Rprop(params, lr=0.01),
    "two_groups": lambda params: torch.optim.AdamW([{"params": params[:2]}, {"params": params[2:], "lr": 0.02}]),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rollback_continues_to_the_bit(name):
    job = Job(OPTIMIZERS[name])
    job.train(3)
    snapshot = Snapshot(job.state)
    at_capture = job.state.digest()
    expected, after = job.train(4), job.state.digest()
    snapshot.restore(job.state)
    assert job.state.digest() == at_capture
    assert job.train(4) == expected
    assert job.state.digest() == after


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_newcomer_that_never_stepped_takes_over(name):
    job = Job(OPTIMIZERS[name])
    job.train(3)
    snapshot = Snapshot(job.state)
    expected, after = job.train(4), job.state.digest()
    newcomer = Job(OPTIMIZERS[name], seed=2)
    snapshot.restore(newcomer.state)
    assert newcomer.train(4) == expected
    assert newcomer.state.digest() == after


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rollback_to_version_0_removes_optimizer_state(name):
    job = Job(OPTIMIZERS[name])
    before = {index: len(state) for index, state in enumerate(job.optimizer.state.values())}
    snapshot = Snapshot(job.state)
    expected = job.train(3)
    snapshot.restore(job.state)
    assert {index: len(state) for index, state in enumerate(job.optimizer.state.values())} == before
    assert job.train(3) == expected


@pytest.mark.parametrize(
    "make_scheduler",
    [
        lambda o: LambdaLR(o, lambda step: 0.9**step),
        lambda o: OneCycleLR(o, 0.1, total_steps=50),
        lambda o: SequentialLR(o, [LambdaLR(o, lambda _: 0.1), CosineAnnealingLR(o, 20)], [4]),
        lambda o: ReduceLROnPlateau(o, patience=0),
        lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 5]),
        lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    ],
    ids=["lambda", "one_cycle", "sequential", "plateau", "multi_step", "cyclic"],
)
def test_schedulers(make_scheduler):
    job = Job(make_scheduler=make_scheduler)
    job.train(3)
    snapshot = Snapshot(job.state)
    expected = job.train(5)
    newcomer = Job(make_scheduler=make_scheduler, seed=2)
    for target in (job, newcomer):
        snapshot.restore(target.state)
        assert target.train(5) == expected


def test_momentum_buffer_that_is_none():
    job = Job(sgd)
    for param in job.optimizer.param_groups[0]["params"]:
        job.optimizer.state[param]["momentum_buffer"] = None
    snapshot = Snapshot(job.state)
    expected = job.train(3)
    for target in (job, Job(sgd, seed=2)):
        snapshot.restore(target.state)
        assert all(state == {"momentum_buffer": None} for state in target.optimizer.state.values())
        assert target.train(3) == expected


def test_capture_beside_forward_and_backward():
    job = Job()
    job.train(2)
    quiet = Snapshot(job.state)
    geometry, expected = quiet.geometry, bytes(quiet.slot[quiet.geometry.offset("unique") :])
    slot = memoryview(bytearray(b"\xa5" * geometry.slot_bytes))
    stop, results = threading.Event(), []

    def capture_again_and_again():
        while not stop.is_set():
            results.append(job.state.copy_bulk(slot, geometry, cancelled=lambda: False))

    job.state.record()
    thread = threading.Thread(target=capture_again_and_again)
    thread.start()
    for _ in range(20):
        job.loss()
    while len(results) < 3:  # however seldom this machine lets the other thread run
        job.loss()
    stop.set()
    thread.join()
    assert results and all(results)
    assert bytes(slot[geometry.offset("unique") :]) == expected


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr("deadpool.snapshot.copying.moves.MOVE_BYTES", 64)
    monkeypatch.setattr("deadpool.snapshot.copying.lanes.MOVE_BYTES", 64)


def test_capture_given_up(small_pieces):
    job = Job()
    geometry = job.state.measure()
    slot = memoryview(bytearray(geometry.slot_bytes))
    answers = iter([False, False, True])
    assert not job.state.copy_bulk(slot, geometry, cancelled=lambda: next(answers))
    assert job.state.copy_bulk(slot, geometry, cancelled=lambda: False)


def test_survivor_keeps_its_tensors_and_gets_its_host_state_back():
    job = Job()
    job.train(3)
    record = job.state.record()
    expected = [Job.loss(job) for _ in range(2)]  # forward writes statistics, generators and the position move
    job.state.restore_record(record)
    job.optimizer.zero_grad()
    assert [Job.loss(job) for _ in range(2)] == expected
    job.state.restore_record(record)
    assert (job.data.position, int(job.model.calls)) == (3, 3)


def test_identities_survive_a_restore():
    job = Job()
    job.train(2)
    snapshot = Snapshot(job.state)
    tensors = [*job.model.parameters(), *(value for state in job.optimizer.state.values() for value in state.values())]
    addresses = [tensor.data_ptr() for tensor in tensors]
    running_mean = job.model.norm.running_mean
    job.train(1)
    snapshot.restore(job.state)
    again = [*job.model.parameters(), *(value for state in job.optimizer.state.values() for value in state.values())]
    assert all(a is b for a, b in zip(tensors, again, strict=True))
    assert [tensor.data_ptr() for tensor in again] == addresses
    assert job.model.norm.running_mean is running_mean


def test_restore_moves_version_counters():
    job = Job()
    snapshot = Snapshot(job.state)
    before = job.model.first.weight._version
    snapshot.restore(job.state)
    assert job.model.first.weight._version > before


def test_steady_state_reuses_plan_and_windows():
    job = Job()
    job.train(1)
    first, geometry = job.state.record(), job.state.measure()
    slot = memoryview(bytearray(geometry.slot_bytes))
    job.state.copy_bulk(slot, geometry, cancelled=lambda: False)
    bulk, planned = job.state._bulk, next(iter(job.state._copier._planned.values()))
    job.train(1)
    second = job.state.record()
    job.state.copy_bulk(slot, geometry, cancelled=lambda: False)
    assert job.state._bulk is bulk and next(iter(job.state._copier._planned.values())) is planned
    assert len(first) == len(second) and job.state.measure() == geometry


def test_other_memory_under_a_parameter_is_noticed():
    job = Job()
    Snapshot(job.state)
    job.model.first.weight.data = torch.full_like(job.model.first.weight, 3.0)
    snapshot, expected = Snapshot(job.state), job.state.digest()
    job.train(1)
    snapshot.restore(job.state)
    assert job.state.digest() == expected


def test_geometry_grows_with_optimizer_state_and_old_slots_are_refused():
    job = Job()
    small = job.state.measure()
    job.train(1)
    large = job.state.measure()
    assert large.unique_bytes > 2 * small.unique_bytes and large.record_capacity == small.record_capacity
    with pytest.raises(ArenaError, match="room for"):
        job.state.copy_bulk(memoryview(bytearray(small.slot_bytes)), small, cancelled=lambda: False)


def test_smaller_state_in_a_larger_slot():
    job = Job()
    at_0 = job.state.digest()
    grown = Job()
    grown.train(1)
    snapshot = Snapshot(job.state, grown.state.measure())
    snapshot.restore(grown.state)
    assert grown.state.digest() == at_0 and not grown.optimizer.state


def test_release_lets_the_memory_go():
    job = Job()
    backing = bytearray(job.state.measure().slot_bytes)
    slot = memoryview(backing)
    job.state.copy_bulk(slot, job.state.measure(), cancelled=lambda: False)
    job.state.release_slots()
    slot.release()
    backing.extend(b"x")  # raises BufferError while a view of it exists


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.brain = nn.Parameter(torch.randn(3, 5, dtype=torch.bfloat16))
        self.transposed = nn.Parameter(torch.randn(4, 6).t())
        self.strided = nn.Parameter(torch.randn(8, 3)[::2])
        self.image = nn.Parameter(torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last))
        self.scalar = nn.Parameter(torch.randn(()))
        self.hollow = nn.Parameter(torch.empty(0, 4))
        self.complex_ = nn.Parameter(torch.randn(3, dtype=torch.complex128))
        self.flags = nn.Parameter(torch.tensor([True, False]), requires_grad=False)
        self.fp8 = nn.Parameter(torch.randn(5).to(torch.float8_e5m2), requires_grad=False)
        self.tied = self.brain
        self.register_buffer("nothing", None)

    def forward(self, x):
        parts = [p.abs().float().sum() for p in self.parameters() if p.requires_grad]
        return torch.stack(parts) * x.mean()


def test_odd_tensors():
    job = Job(make_model=Odd)
    job.train(2)
    assert "model.tied" not in str(job.state.record())
    snapshot, at_capture = Snapshot(job.state), job.state.digest()
    strides = [param.stride() for param in job.model.parameters()]
    with torch.no_grad():
        job.model.flags.logical_not_()
        job.model.fp8.zero_()
    expected = None
    for target in (job, Job(make_model=Odd, seed=3)):
        target.train(1)
        snapshot.restore(target.state)
        assert target.state.digest() == at_capture
        assert [param.stride() for param in target.model.parameters()] == strides
        losses = target.train(3)
        expected = expected or losses
        assert losses == expected


@pytest.mark.parametrize("make_model", [Net, Odd])
def test_large_tensors_are_copied_in_pieces(small_pieces, make_model):
    """The copy asks before each piece whether to go on, and all pieces together give the state back to the bit."""
    job = Job(make_model=make_model)
    job.train(2)
    geometry, pieces = job.state.measure(), itertools.count()
    slot = memoryview(bytearray(geometry.slot_bytes))
    assert job.state.copy_bulk(slot, geometry, cancelled=lambda: next(pieces) < 0)
    assert next(pieces) > 10, "at the normal size of a piece it asks once or twice"
    snapshot, at_capture = Snapshot(job.state), job.state.digest()
    expected = job.train(3)
    for target in (job, Job(make_model=make_model, seed=3)):
        snapshot.restore(target.state)
        assert target.state.digest() == at_capture
        assert target.train(3) == expected


class Lazy(nn.Module):
    """Has buffers that forward registers, and whose shapes change."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(0))

    def forward(self, x):
        self.seen = torch.cat([self.seen, x.mean().detach()[None]])
        if "late" not in self._buffers and len(self.seen) > 2:
            self.register_buffer("late", torch.ones(2), persistent=False)
        return self.linear(x) * self.seen.mean()


@pytest.mark.parametrize("steps", [1, 4])
def test_buffers_that_come_and_grow(steps):
    job = Job(make_model=Lazy)
    job.train(steps)
    snapshot, at_capture = Snapshot(job.state), job.state.digest()
    names = set(job.model._buffers)
    expected = job.train(3)
    for target in (job, Job(make_model=Lazy, seed=2)):
        snapshot.restore(target.state)
        assert set(target.model._buffers) == names and target.state.digest() == at_capture
        assert "late" not in target.model.state_dict()
        assert target.train(3) == expected


def test_parameters_known_only_to_the_optimizer():
    weight = nn.Parameter(torch.ones(3))
    optimizer = adamw([weight])
    state = ProtectedState({"optimizer": optimizer}, replicas={}, rank=0, node_of=int)
    snapshot = Snapshot(state)
    weight.grad = torch.ones(3)
    optimizer.step()
    snapshot.restore(state)
    assert torch.equal(weight, torch.ones(3)) and not optimizer.state


def test_module_given_twice_is_stored_once():
    model = Net()
    alone = ProtectedState({"model": model}, replicas={}, rank=0, node_of=int).measure()
    twice = ProtectedState({"model": model, "part": model.first}, replicas={}, rank=0, node_of=int).measure()
    assert alone.unique_bytes == twice.unique_bytes


def test_group_added_after_the_snapshot_goes_again():
    job = Job(lambda params: adamw(params[:2]))
    job.train(1)
    snapshot, at_capture = Snapshot(job.state), job.state.digest()
    job.optimizer.add_param_group({"params": [job.model.last.weight]})
    job.optimizer.zero_grad()
    job.loss()
    job.optimizer.step()
    snapshot.restore(job.state)
    assert len(job.optimizer.param_groups) == 1 and job.state.digest() == at_capture


def test_lbfgs_keeps_lists_of_tensors():
    target = torch.randn(4)

    def run(weight, optimizer, steps):
        def closure():
            optimizer.zero_grad()
            loss = (weight - target).pow(4).sum()
            loss.backward()
            return loss

        return [optimizer.step(closure).item() for _ in range(steps)]

    def build():
        weight = nn.Parameter(torch.zeros(4))
        optimizer = torch.optim.LBFGS([weight], max_iter=2)
        return weight, optimizer, ProtectedState({"opt": optimizer}, replicas={}, rank=0, node_of=int)

    weight, optimizer, state = build()
    run(weight, optimizer, 3)
    snapshot = Snapshot(state)
    expected = run(weight, optimizer, 3)
    for weight, optimizer, state in ((weight, optimizer, state), build()):  # noqa: B020
        snapshot.restore(state)
        assert run(weight, optimizer, 3) == expected


def test_scaler_that_was_cut_off_after_it_had_unscaled_gradients():
    """It remembers that outside of its state, and would refuse to do it again in the redone step."""
    weight = nn.Parameter(torch.ones(3))
    optimizer, scaler = sgd([weight]), torch.amp.GradScaler("cpu", init_scale=4.0)
    state = ProtectedState({"optimizer": optimizer, "scaler": scaler}, replicas={}, rank=0, node_of=int)
    record = state.record()
    for _ in range(2):
        scaler.scale((weight * 2).sum()).backward()
        scaler.unscale_(optimizer)
        assert weight.grad is not None and weight.grad.tolist() == [2.0] * 3
        weight.grad = None
        state.restore_record(record)


def test_gradient_scaler_that_is_not_enabled():
    """Scripts make one in any case, and enable it for fp16 only."""
    model, scaler = Net(), torch.amp.GradScaler("cpu", enabled=False)
    state = ProtectedState({"model": model, "scaler": scaler}, replicas={}, rank=0, node_of=lambda rank: rank)
    Snapshot(state).restore(state)
    assert scaler.state_dict() == {}
