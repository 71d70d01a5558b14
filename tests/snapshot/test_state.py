"""Protected state: capture, go on, restore, and the run continues to the bit as if nothing had happened."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, SequentialLR

from deadpool.errors import ArenaError, ConfigError, StateError
from deadpool.protocol.seal import Extent, Geometry
from deadpool.snapshot.state import ProtectedState


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

    def __init__(self, make_optimizer=adamw, make_model=Net, make_scheduler=None, seed=1, replicas=()) -> None:
        torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
        self.model = make_model()
        self.optimizer = make_optimizer([param for param in self.model.parameters() if param.requires_grad])
        self.scheduler = (make_scheduler or (lambda o: CosineAnnealingLR(o, 20)))(self.optimizer)
        self.data = Data()
        objects = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "data": self.data}
        ranks = {id(param): tuple(replicas) for param in self.model.parameters()}
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
    stop.set()
    thread.join()
    assert results and all(results)
    assert bytes(slot[geometry.offset("unique") :]) == expected


def test_capture_given_up():
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
    plan, moves = job.state._plan, next(iter(job.state._copier._moves.values()))
    job.train(1)
    second = job.state.record()
    job.state.copy_bulk(slot, geometry, cancelled=lambda: False)
    assert job.state._plan is plan and next(iter(job.state._copier._moves.values())) is moves
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
    backing.extend(b"x")  # BufferError while anyone looks at it


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.half = nn.Parameter(torch.randn(3, 5, dtype=torch.bfloat16))
        self.transposed = nn.Parameter(torch.randn(4, 6).t())
        self.strided = nn.Parameter(torch.randn(8, 3)[::2])
        self.image = nn.Parameter(torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last))
        self.scalar = nn.Parameter(torch.randn(()))
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.double = nn.Parameter(torch.randn(3, dtype=torch.complex128))
        self.flags = nn.Parameter(torch.tensor([True, False]), requires_grad=False)
        self.fp8 = nn.Parameter(torch.randn(5).to(torch.float8_e5m2), requires_grad=False)
        self.tied = self.half
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


def test_large_tensors_are_copied_in_pieces(monkeypatch):
    monkeypatch.setattr("deadpool.snapshot.copying._PIECE_BYTES", 64)
    test_rollback_continues_to_the_bit("adamw")
    test_odd_tensors()


class Lazy(nn.Module):
    """Buffers that forward registers, and that change their shape."""

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

        return [float(optimizer.step(closure)) for _ in range(steps)]

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


# --- replicas


def two_params(replicas, node_of=lambda rank: rank):
    model = nn.ParameterDict({"a": torch.ones(2), "b": torch.ones(4)})
    return ProtectedState(
        {"model": model},
        replicas={id(model[name]): ranks for name, ranks in replicas.items()},
        rank=0,
        node_of=node_of,
    )


@pytest.mark.parametrize(
    ("replicas", "peers", "unique_bytes", "replica_bytes"),
    [
        ({}, (), 24, 0),
        ({"a": (0,), "b": (0,)}, (), 24, 0),
        ({"a": (0, 1), "b": (0, 1)}, (0, 1), 0, 24),
        ({"a": (0, 1, 2), "b": (0, 1, 3)}, (0, 1), 0, 24),
        ({"a": (0, 1), "b": (0, 2)}, (0, 1), 16, 8),
        ({"b": (0, 2)}, (0, 2), 8, 16),
    ],
)
def test_replica_region(replicas, peers, unique_bytes, replica_bytes):
    state = two_params(replicas)
    geometry = state.measure()
    assert (state.peers, geometry.unique_bytes, geometry.replica_bytes) == (peers, unique_bytes, replica_bytes)


def test_replica_on_the_same_node_does_not_count():
    state = two_params({"a": (0, 1), "b": (0, 1, 2)}, node_of=lambda rank: rank // 2)
    assert state.peers == (0, 1, 2) and state.measure().replica_bytes == 16


def test_replicas_have_equal_regions_whatever_lay_in_the_slot():
    job, peer = Job(replicas=(0, 1)), Job(replicas=(0, 1))
    job.train(2)
    Snapshot(job.state).restore(peer.state)
    ours, theirs = Snapshot(job.state), Snapshot(peer.state)
    start, size = ours.geometry.offset("replica"), ours.geometry.replica_bytes
    assert ours.geometry.unique_bytes == 0
    theirs.slot[start : start + size] = b"\x11" * size
    assert peer.state.copy_bulk(theirs.slot, theirs.geometry, cancelled=lambda: False)
    assert ours.slot[start : start + size] == theirs.slot[start : start + size]
    expected = job.train(2)
    ours.restore(peer.state)
    assert peer.train(2) == expected


# --- what is refused


def generator():
    yield 1


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ({}, "nothing to protect"),
        ({"data": generator()}, "data: got a generator without state_dict and load_state_dict; .*StatefulDataLoader"),
        ({"data": torch.utils.data.DataLoader([1])}, "data: got a DataLoader without .*StatefulDataLoader"),
        ({"lr": 0.1}, "lr: got a float without .*pass an nn.Module, a torch.optim.Optimizer or an object with"),
        ({"model": nn.Linear}, "model: got the class Linear itself, pass an instance"),
        ({"models": [nn.Linear(1, 1)]}, "models: got a list .*under a keyword each"),
    ],
)
def test_objects_that_cannot_be_protected(objects, message):
    with pytest.raises(ConfigError, match=message):
        ProtectedState(objects, replicas={}, rank=0, node_of=int)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: Net(13), r"model.first.weight: shape \(13, 8\) here, \(12, 8\) in the snapshot"),
        (lambda: Net().bfloat16(), "model.frozen: dtype torch.bfloat16 here, torch.float32 in the snapshot"),
        (lambda: nn.Linear(8, 8), r"model.weight has shape \(8, 8\) here and is not in the snapshot"),
        (lambda: nn.BatchNorm1d(12), r"model.weight has shape \(12,\) here and is not in the snapshot"),
    ],
)
def test_snapshot_of_another_model_is_refused_and_nothing_changes(other, message):
    job = Job()
    job.train(1)
    snapshot = Snapshot(job.state)
    stranger = Job(make_model=other, seed=5)
    before = stranger.state.digest()
    with pytest.raises(StateError, match=message):
        snapshot.restore(stranger.state)
    assert stranger.state.digest() == before


def test_snapshot_with_missing_bytes_is_refused():
    job = Job()
    snapshot = Snapshot(job.state)
    extent = Extent(record_bytes=snapshot.extent.record_bytes, unique_bytes=0, replica_bytes=0)
    with pytest.raises(StateError, match="layout needs .* bytes in region 'unique', it holds 0"):
        job.state.restore(snapshot.slot, snapshot.geometry, extent)


def test_objects_under_other_keywords_are_refused():
    a, b = (ProtectedState({name: Data()}, replicas={}, rank=0, node_of=int) for name in ("data", "loader"))
    with pytest.raises(StateError, match=r"the snapshot has the objects \['data'\], protected here are \['loader'\]"):
        b.restore_record(a.record())


def test_failing_load_state_dict_names_the_keyword():
    state = ProtectedState({"data": Data()}, replicas={}, rank=0, node_of=int)
    record = state.record()
    state._objects.stateful["data"].load_state_dict = lambda _: 1 / 0
    with pytest.raises(StateError, match=r"data.load_state_dict\(\) failed: ZeroDivisionError"):
        state.restore_record(record)


def test_unstorable_state_names_its_place():
    data = Data()
    data.state_dict = lambda: {"sampler": object()}
    state = ProtectedState({"data": data}, replicas={}, rank=0, node_of=int)
    with pytest.raises(StateError, match=r"data.state_dict\(\)\['sampler'\]: object of type object cannot be stored"):
        state.measure()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.Linear(2, 2, device="meta"), "model.weight is on the meta device"),
        (lambda: nn.LazyLinear(2), "model.weight is not initialised yet"),
    ],
)
def test_tensors_without_memory(model, message):
    with pytest.raises(StateError, match=message):
        ProtectedState({"model": model()}, replicas={}, rank=0, node_of=int).measure()


def test_state_of_a_parameter_that_left_the_optimizer():
    job = Job()
    job.train(1)
    job.optimizer.param_groups[0]["params"].pop()
    with pytest.raises(
        StateError, match="optimizer.state has entries for 1 tensors that are in none of its param_groups"
    ):
        job.state.record()


def test_not_a_record():
    with pytest.raises(StateError, match="not a boundary record"):
        Job().state.restore_record(b"\xc1nonsense")
