"""One small training step under each framework that can be had in one process, with marks left on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

from deadpool.trainer.process.injected_fault import MomentWatch

WIDTH = 8
Step = Callable[["Trail"], None]


class Trail:
    """Where a step is: the last mark it passed, and what the injection found there."""

    def __init__(self) -> None:
        self.mark = "begun"
        self.found: dict[str, Any] | None = None
        self.times = 0

    def injection(self) -> None:
        self.times += 1
        inside = torch._C._current_autograd_node() is not None
        self.found = {"mark": self.mark, "in_autograd": inside, "values": values()}


_parameters: list[nn.Parameter] = []


def values() -> list[Any]:
    """Of the parameters, or of this rank's shards, as they are now."""
    found = (parameter.detach() for parameter in _parameters)
    return [(each.to_local() if isinstance(each, DTensor) else each).tolist() for each in found]


def state_after_two_steps(step: Step, at: str | None) -> list[Tensor]:
    """The second one watched, if `at` says for what."""
    torch.manual_seed(1)
    if at is None:
        step(Trail())
        step(Trail())
    else:
        run(at, step)
    return [parameter.detach().clone() for parameter in _parameters]


def run(at: str, step: Step) -> Trail:
    """The second step under watch: the first makes the optimizer's state."""
    step(Trail())
    trail = Trail()
    with MomentWatch(at, trail.injection) as watch:
        step(trail)
        watch.block_ends()
    return trail


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)]
    return nn.Sequential(*layers)


def batch() -> Tensor:
    made = torch.randn(4, WIDTH)
    for _ in range(20):  # a batch is made by ops too
        made = made + 0.1
    return made


def reduce_by_hand(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, given: Tensor) -> Tensor:
        recomputed = checkpoint(self.inner, given, use_reentrant=False)
        assert isinstance(recomputed, Tensor)
        return recomputed


def make_step(
    model: nn.Module,
    *,
    microbatches: int = 1,
    reduce: bool = False,
    clip: bool = True,
    **optimizer_options: bool,
) -> Step:
    _parameters[:] = list(model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), **optimizer_options)

    def step(trail: Trail) -> None:
        for index in range(microbatches):
            given = batch()
            trail.mark = f"forward {index}"
            loss = model(given).square().mean()
            trail.mark = f"backward {index}"
            loss.backward()
            trail.mark = f"after backward {index}"
        loss.item()
        if reduce:
            reduce_by_hand(model)
        trail.mark = "clip"
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        trail.mark = "optimizer"
        optimizer.step()
        trail.mark = "end"
        optimizer.zero_grad()

    return step


def plain(**options: Any) -> Step:
    return make_step(network(), reduce=True, **options)


def ddp(**options: Any) -> Step:
    return make_step(nn.parallel.DistributedDataParallel(network()), **options)


def recomputed(**options: Any) -> Step:
    return make_step(Recomputed(), reduce=True, **options)


def fsdp2(**options: Any) -> Step:
    model, mesh = network(), init_device_mesh("cpu", (2,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return make_step(model, **options)


def tensor_parallel(**options: Any) -> Step:
    """The gradient of the last layer's input has to be reduced."""
    mesh = init_device_mesh("cpu", (2,))
    sharding = {"0": ColwiseParallel(), "2": RowwiseParallel(), "4": ColwiseParallel(output_layouts=Replicate())}
    return make_step(parallelize_module(network(), mesh, sharding), **options)


def pipeline(**options: Any) -> Step:
    """One stage, whose schedule runs forwards and backwards in turn."""
    model = network()
    stage = PipelineStage(model, 0, 1, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda given, target: (given - target).square().mean())
    _parameters[:] = list(model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), **options)

    def step(trail: Trail) -> None:
        given = batch()
        trail.mark = "schedule"
        schedule.step(given, target=given)
        trail.mark = "reduce"
        reduce_by_hand(model)
        trail.mark = "clip"
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        trail.mark = "optimizer"
        optimizer.step()
        trail.mark = "end"
        optimizer.zero_grad()

    return step
