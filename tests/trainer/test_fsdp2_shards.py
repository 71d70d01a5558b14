"""Parameters of FSDP2 that a script exchanges are named at the next boundary; a step that was cut off is undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from capture_bench import CaptureBench
from device_twin import DeviceTwin
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from deadpool.trainer.adapters.fsdp2 import Fsdp2Adapter


def sharded(layers: int = 2) -> Any:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


class ShardedStage(CaptureBench):
    def make_model(self) -> nn.Module:
        model = sharded()
        model(torch.ones(2, 4)).sum().backward()  # the first forward pass takes the parameters that it finds
        return model  # type: ignore[no-any-return]

    def train(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(6, 4)).square().mean().backward()
        self.optimizer.step()


@pytest.fixture
def bench() -> Iterator[ShardedStage]:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    bench = ShardedStage(DeviceTwin(), granted=9)
    bench.step()
    yield bench
    bench.close()
    dist.destroy_process_group()


def found(bench: CaptureBench) -> list[dict[str, Any]]:
    return [each[1] for each in bench.session.said if isinstance(each, tuple) and each[0] == "inexact_script"]


def like(param: Any) -> Any:
    return DTensor.from_local(
        torch.ones_like(param._local_tensor), param.device_mesh, param.placements, run_check=False
    )


def put_parameter(model: Any) -> None:
    model[1].weight = nn.Parameter(like(model[1].weight))


def put_memory(model: Any) -> None:
    model[1].weight._local_tensor = torch.ones(2, 4)


def put_memory_inside(model: Any) -> None:
    model[1].weight._local_tensor.data = torch.ones(2, 4)


def swap(model: Any) -> None:
    torch.utils.swap_tensors(model[1].weight, nn.Parameter(like(model[1].weight)))


def load_by_assignment(model: Any) -> None:
    model[1].load_state_dict({"weight": like(model[1].weight), "bias": like(model[1].bias)}, assign=True)


CHANGES = [put_parameter, put_memory, put_memory_inside, swap, load_by_assignment]


@pytest.mark.parametrize("change", CHANGES)
def test_exchanged_parameter_is_named_once(bench: ShardedStage, change: Callable[[Any], None]):
    bench.step()
    assert found(bench) == []
    change(bench.model)
    bench.end_step()
    bench.end_step()
    (finding,) = found(bench)
    assert finding["rule"] == "replaced_objects" and "1.weight" in finding["found"]
    assert "fully_shard" in finding["found"] and finding["step"] == 3


def test_what_does_not_exchange_parameters_is_not_named(bench: ShardedStage):
    """Whole parameters of an evaluation, state that is loaded in place, parameters that are moved and frozen."""
    with torch.no_grad():
        bench.model(torch.ones(2, 4))
    bench.end_step()
    bench.model.load_state_dict(bench.model.state_dict())
    bench.end_step()
    bench.optimizer.zero_grad()
    bench.model.to("cpu")
    bench.model.requires_grad_(False)
    bench.end_step()
    bench.model.requires_grad_(True)
    bench.step()
    assert found(bench) == []


@pytest.mark.parametrize("change", [put_memory, put_memory_inside])
def test_memory_that_a_cut_off_step_has_put_into_a_parameter(bench: ShardedStage, change: Callable[[Any], None]):
    model: Any = bench.model
    address = model[1].weight._local_tensor.data_ptr()
    change(model)
    Fsdp2Adapter([model]).reset()
    assert model[1].weight._local_tensor.data_ptr() == address and not model[1].weight._local_tensor.eq(1).all()


@pytest.mark.parametrize("change", [put_parameter, load_by_assignment])
def test_rank_whose_cut_off_step_has_exchanged_parameters_cannot_go_on(
    bench: ShardedStage, change: Callable[[Any], None]
):
    """fully_shard would gather what no snapshot is loaded into; a fresh process has neither."""
    assert not bench.job.has_other_shards
    change(bench.model)
    assert bench.job.has_other_shards


def test_rank_that_is_cut_off_in_the_middle_of_a_step_goes_on(bench: ShardedStage):
    bench.optimizer.zero_grad()
    loss = bench.model(torch.ones(2, 4)).sum()
    assert not bench.job.has_other_shards
    loss.backward()
    assert not bench.job.has_other_shards
    with torch.no_grad():
        bench.model(torch.ones(2, 4))  # its root keeps whole parameters
    assert not bench.job.has_other_shards
