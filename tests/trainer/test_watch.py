"""Which moment a step is in, recognised from its ops alone: for every framework the same words mean the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # makes the backend "fake" known
from small_steps import (
    ddp,
    fsdp2,
    make_step,
    network,
    pipeline,
    plain,
    recomputed,
    run,
    state_after_two_steps,
    tensor_parallel,
    values,
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from deadpool.trainer.process.injected_fault import WATCHED


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def one_of_two() -> Iterator[None]:
    """Its collectives do nothing, but they are called."""
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


ONE_BATCH = {"forward": "forward 0", "backward": "backward 0", "clip": "clip", "optimizer": "optimizer"}
BY_HAND = {**ONE_BATCH, "reduce": "after backward 0"}
WITHIN_BACKWARD = {**ONE_BATCH, "reduce": "backward 0"}


def check_alone(at, step, marks):
    trail = run(at, step)
    assert trail.times == 1, trail.found
    assert trail.found["mark"] == marks[at]
    assert trail.found["in_autograd"] or at != "backward"


@pytest.mark.parametrize("at", WATCHED)
@pytest.mark.parametrize(("make", "marks"), [(plain, BY_HAND), (ddp, WITHIN_BACKWARD), (recomputed, BY_HAND)])
def test_moment_of_replicated_training(alone, at, make, marks):
    check_alone(at, make(), marks)


@pytest.mark.parametrize("at", WATCHED)
@pytest.mark.parametrize("make", [fsdp2, tensor_parallel])
def test_moment_of_sharded_training(one_of_two, at, make):
    check_alone(at, make(), WITHIN_BACKWARD)


@pytest.mark.parametrize("at", WATCHED)
def test_moment_of_a_pipeline_whose_schedule_runs_backward(alone, at):
    marks = {
        "forward": "schedule",
        "backward": "schedule",
        "reduce": "reduce",
        "clip": "clip",
        "optimizer": "optimizer",
    }
    check_alone(at, pipeline(), marks)


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=["single", "foreach", "fused"])
def test_optimizer_is_hit_before_its_step_returns(alone, options):
    """With state and parameters that do not belong together, except where one op does it all."""
    trail = run("optimizer", plain(**options))
    assert trail.found["mark"] == "optimizer" and trail.times == 1
    assert (trail.found["values"] == values()) == bool(options.get("fused"))


def test_optimizer_of_sharded_parameters_in_one_fused_op(one_of_two):
    assert run("optimizer", fsdp2(fused=True)).found["mark"] == "optimizer"


def test_optimizer_whose_step_is_a_single_op(alone):
    model = nn.Linear(8, 8, bias=False)
    step = make_step(model, clip=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def whole(trail):
        model(torch.ones(1, 8)).sum().backward()
        trail.mark = "optimizer"
        optimizer.step()
        trail.mark = "end"

    assert run("optimizer", whole).found["mark"] == "optimizer"
    assert run("forward", step).found["mark"] in ("forward 0", "backward 0")


def test_model_too_small_for_a_middle_is_hit_before_it_leaves_the_moment(alone):
    step = make_step(nn.Linear(8, 8), clip=False)
    forward, backward = run("forward", step), run("backward", step)
    assert forward.found["mark"] == "backward 0", "before the first op of backward has run"
    assert backward.found["mark"] in ("backward 0", "after backward 0")


def test_gradients_accumulated_over_microbatches(alone):
    """Only the first forward and backward are long enough to be hit; a reduction comes after the last."""
    step = make_step(network(), microbatches=3, reduce=True)
    assert run("forward", step).found["mark"] == "forward 0"
    assert run("backward", step).found["mark"] == "backward 0"
    assert run("reduce", step).found["mark"] == "after backward 2"


class Normalised(nn.Module):
    """Norms and reductions in forward, as sequence parallelism has them, are neither clipping nor reducing."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, given):
        made = self.inner(given)
        dist.all_reduce(made.detach().clone())
        return nn.functional.normalize(made)


@pytest.mark.parametrize(("at", "mark"), [("reduce", "after backward 1"), ("clip", "clip")])
def test_norms_and_reductions_of_the_forward_pass_are_not_taken_for_the_gradients(alone, at, mark):
    step = make_step(Normalised(), microbatches=2, reduce=True)
    assert run(at, step).found["mark"] == mark


def test_clipping_of_sharded_gradients_is_not_taken_for_their_reduction(one_of_two):
    """The norm of sharded gradients is reduced; without a reduction of gradients themselves nothing is hit."""
    mesh = init_device_mesh("cpu", (2,))
    weight = nn.Parameter(distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)]))

    def step(trail):
        (weight * 2).to_local().sum().backward()
        nn.utils.clip_grad_norm_([weight], 1.0).full_tensor()

    assert run("reduce", step).times == 0
    assert run("clip", step).times == 1


def test_moment_that_does_not_come(alone):
    assert run("clip", plain(clip=False)).times == 0
    assert run("reduce", make_step(network())).times == 0


@pytest.mark.parametrize("make", [plain, ddp])
def test_watched_step_computes_the_same(alone, make):
    unwatched, watched = (state_after_two_steps(make(), at) for at in (None, "optimizer"))
    assert all(torch.equal(one, other) for one, other in zip(unwatched, watched, strict=True))
