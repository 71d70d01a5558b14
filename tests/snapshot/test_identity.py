"""The tensors and the memory that a script has at a boundary, it has again after a restore."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from state_job import Snapshot
from torch import Tensor, nn

from deadpool.errors import OtherStructure
from deadpool.snapshot.state.state import ProtectedState


class Stage:
    """A small model with AdamW, one step after the start."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.state = ProtectedState(
            {"model": self.model, "optimizer": self.optimizer}, replicas={}, rank=0, node_of=lambda rank: rank
        )

    def train(self) -> None:
        self.model(torch.randn(3, 4)).square().mean().backward()
        self.optimizer.step()

    def restore(self, snapshot: Snapshot) -> None:
        snapshot.restore(self.state)
        self.state.restore_gradients()

    @property
    def params(self) -> list[Tensor]:
        return list(self.model.parameters())


@pytest.fixture
def stage() -> Stage:
    made = Stage()
    made.train()
    return made


# --- gradients -------------------------------------------------------------------------------------------------------


def test_torch_keeps_the_object_of_a_gradient_that_only_its_parameter_has(stage):
    refs = [weakref.ref(param.grad) for param in stage.params]
    gc.collect()
    assert [ref() is param.grad for ref, param in zip(refs, stage.params, strict=True)] == [True] * 4


def test_gradients_that_the_script_holds_come_back_with_zeros(stage):
    held = [param.grad for param in stage.params]
    snapshot = Snapshot(stage.state)
    stage.optimizer.zero_grad()
    stage.train()
    stage.restore(snapshot)
    assert all(param.grad is each and not each.any() for param, each in zip(stage.params, held, strict=True))


def test_views_of_a_flat_gradient_come_back(stage):
    flat = torch.ones(20)
    stage.params[0].grad = flat[:16].view(4, 4)
    stage.params[1].grad = flat[16:]
    snapshot = Snapshot(stage.state)
    stage.train()
    stage.restore(snapshot)
    assert not flat.any()
    stage.params[0].grad.add_(1)
    assert flat[:16].eq(1).all()


def test_a_record_keeps_no_gradient_alive(stage):
    stage.state.record()
    refs = [weakref.ref(param.grad) for param in stage.params]
    stage.optimizer.zero_grad(set_to_none=True)
    assert [ref() for ref in refs] == [None] * 4


def test_a_newcomer_keeps_the_gradients_that_it_has(stage):
    snapshot = Snapshot(stage.state)
    newcomer = Stage()
    static = torch.ones(4, 4)
    newcomer.params[0].grad = static
    newcomer.restore(snapshot)
    assert newcomer.params[0].grad is static and not static.any()
    assert all(param.grad is not None and not param.grad.any() for param in newcomer.params)


def test_no_gradient_is_left_where_there_was_none(stage):
    stage.optimizer.zero_grad()
    snapshot = Snapshot(stage.state)
    stage.train()
    stage.restore(snapshot)
    assert [param.grad for param in stage.params] == [None] * 4


def test_a_gradient_that_cannot_be_written_is_replaced(stage):
    stage.params[0].grad = torch.ones(1, 1).expand(4, 4)
    snapshot = Snapshot(stage.state)
    stage.restore(snapshot)
    assert stage.params[0].grad.shape == (4, 4) and not stage.params[0].grad.any()


def test_a_sparse_gradient_stays_sparse():
    embedding = nn.Embedding(5, 3, sparse=True)
    state = ProtectedState({"model": embedding}, replicas={}, rank=0, node_of=lambda rank: rank)
    embedding(torch.tensor([1, 2])).sum().backward()
    snapshot = Snapshot(state)
    snapshot.restore(state)
    state.restore_gradients()
    assert embedding.weight.grad.is_sparse and not embedding.weight.grad.to_dense().any()


# --- memory ----------------------------------------------------------------------------------------------------------


def test_what_was_put_under_a_parameter_for_a_while_is_not_overwritten(stage):
    average, expected = torch.full((4, 4), 7.0), stage.params[0].detach().clone()
    memory = stage.params[0].data_ptr()
    snapshot = Snapshot(stage.state)
    stage.params[0].data = average
    stage.restore(snapshot)
    assert stage.params[0].data_ptr() == memory and torch.equal(stage.params[0], expected)
    assert average.eq(7).all()


def test_a_state_tensor_that_was_exchanged_comes_back(stage):
    state = stage.optimizer.state[stage.params[0]]
    before, expected = state["exp_avg"], state["exp_avg"].clone()
    snapshot = Snapshot(stage.state)
    state["exp_avg"] = state["exp_avg"] * 2
    stage.restore(snapshot)
    assert stage.optimizer.state[stage.params[0]]["exp_avg"] is before and torch.equal(before, expected)


def test_a_rank_that_keeps_its_bytes_gets_its_memory_back(stage):
    expected, memory = stage.params[0].detach().clone(), stage.params[0].data_ptr()
    record = stage.state.record()
    stage.params[0].data = torch.zeros(4, 4)
    stage.state.restore_record(record)
    assert stage.params[0].data_ptr() == memory and torch.equal(stage.params[0], expected)


def test_an_assignment_to_data_shows_although_torch_does_not_count_it(stage):
    stage.state.record()
    assert stage.state.is_as_recorded
    stage.params[0].data = stage.params[0].data - 1
    assert stage.state.is_untouched and not stage.state.is_as_recorded


def test_a_write_that_torch_does_not_count_is_found_at_the_next_boundary(stage):
    stage.state.record()
    stage.train()
    stage.state.record()
    assert not stage.state.has_uncounted_writes
    stage.params[1].detach().numpy()[:] += 1
    assert stage.state.is_untouched and not stage.state.is_as_recorded
    stage.state.record()
    assert stage.state.has_uncounted_writes


# --- parameters that are exchanged -----------------------------------------------------------------------------------


def test_a_parameter_that_was_exchanged_is_the_one_that_is_captured(stage):
    stage.state.record()
    stage.model[1].weight = nn.Parameter(torch.full((4, 4), 3.0))
    snapshot = Snapshot(stage.state)
    with torch.no_grad():
        stage.model[1].weight.zero_()
    stage.restore(snapshot)
    assert stage.model[1].weight.eq(3).all()
    assert stage.state.take_structure_change() is None  # a newcomer can have it


def test_what_a_step_that_was_cut_off_exchanged_is_put_back(stage):
    module, weight = stage.model[1], stage.model[0].weight
    snapshot = Snapshot(stage.state)
    stage.model[1] = nn.Linear(4, 4)
    stage.model[0].weight = nn.Parameter(torch.zeros(4, 4))
    stage.optimizer.add_param_group({"params": [stage.model[0].weight]})
    stage.restore(snapshot)
    assert stage.model[1] is module and stage.model[0].weight is weight
    assert len(stage.optimizer.param_groups) == 1


def test_a_newcomer_gets_apart_what_the_snapshot_has_apart(stage):
    stage.model[1] = nn.Linear(4, 4)
    snapshot = Snapshot(stage.state)
    newcomer = Stage()
    newcomer.restore(snapshot)
    assert newcomer.state.digest() == stage.state.digest()
    old = newcomer.optimizer.param_groups[0]["params"][2]
    assert old is not newcomer.model[1].weight and not torch.equal(old, newcomer.model[1].weight)


def test_what_dry_steps_exchanged_is_put_back_for_a_version_before(stage):
    snapshot = Snapshot(stage.state)
    newcomer = Stage()
    newcomer.model[1].weight = nn.Parameter(torch.zeros(4, 4))  # in a dry step
    newcomer.state.measure()
    newcomer.restore(snapshot)
    assert newcomer.optimizer.param_groups[0]["params"][2] is newcomer.model[1].weight
    assert newcomer.state.digest() == stage.state.digest()


def test_parameters_that_come_and_go_are_named(stage):
    stage.state.record()
    assert stage.state.take_structure_change() is None
    stage.model[1] = nn.Linear(4, 8, bias=False)
    stage.model.append(nn.Linear(8, 2, bias=False))
    stage.optimizer.param_groups[0]["params"][2:] = list(stage.model[1].parameters())
    stage.optimizer.state.clear()
    stage.state.record()
    change = stage.state.take_structure_change()
    assert change is not None
    assert (change.added, change.removed, change.reshaped) == (
        *(("model.2.weight",), ("model.1.bias",)),
        ("model.1.weight",),
    )
    assert stage.state.take_structure_change() is None
    with pytest.raises(OtherStructure, match=r"model\.2\.weight.*model\.1\.weight|model\.1\.weight.*model\.2\.weight"):
        Stage().restore(Snapshot(stage.state))


def test_memory_can_be_resized_after_a_copy_and_a_restore(stage):
    """numpy() would have marked it."""
    snapshot = Snapshot(stage.state)
    stage.restore(snapshot)
    for tensor in (stage.params[0], stage.optimizer.state[stage.params[0]]["exp_avg"]):
        assert tensor.untyped_storage().resizable()
