"""Layouts with torch.distributed.pipelining: consecutive pieces of the model on consecutive ranks; also 3-D layouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from deadpool.demo.gpt import mean_loss
from deadpool.errors import ConfigError
from deadpool_lab.workload.layouts.assembly import Assembly, LayoutOptions, adamw, compile_blocks
from deadpool_lab.workload.layouts.sharded import shard
from deadpool_lab.workload.layouts.tensor_parallel import parallelize

STAGES_PER_RANK = {"pp-interleaved": 2}


def build(layout: str, options: LayoutOptions) -> Assembly:
    mesh = _mesh(layout, options.device.type)
    places = _Places(mesh["pp"].get_local_rank(), mesh["pp"].size(), STAGES_PER_RANK.get(layout, 1))
    parts = [_part(index, places, mesh, options) for index in places.own()]
    stages = [_stage(index, part, places, mesh, options) for index, part in zip(places.own(), parts, strict=True)]
    schedule = _schedule(layout, stages, micro_batches=places.ranks)
    model = nn.ModuleList(parts)
    return Pipeline(model, adamw(model, options), options, schedule, mesh)


class Pipeline(Assembly):
    def __init__(
        self, model: nn.ModuleList, optimizer: Any, options: LayoutOptions, schedule: Any, mesh: DeviceMesh
    ) -> None:
        super().__init__(model, optimizer, options.batch * mesh["pp"].size())
        self.schedule, self.mesh, self.device = schedule, mesh, options.device
        stage = mesh["pp"].get_local_rank()
        self.is_first, self.is_last = stage == 0, stage == mesh["pp"].size() - 1
        self.data_rank, self.data_size = mesh["dp"].get_local_rank(), mesh["dp"].size()

    def train_step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        losses: list[Tensor] = []
        given = (tokens,) if self.is_first else ()
        wanted = {"target": targets, "losses": losses} if self.is_last else {}
        self.schedule.step(*given, **wanted)
        return torch.stack(losses).mean().detach() if losses else torch.zeros((), device=self.device)

    def norm(self) -> Tensor:
        squared = super().norm().square()
        dist.all_reduce(squared, group=self.mesh.get_group("pp"))
        return squared.sqrt()


@dataclass(frozen=True, slots=True)
class _Places:
    """The stages of this rank. Several stages per rank go round robin, as the interleaved schedule needs it."""

    rank: int
    ranks: int
    per_rank: int

    @property
    def stages(self) -> int:
        return self.ranks * self.per_rank

    def own(self) -> Iterator[int]:
        return iter(range(self.rank, self.stages, self.ranks))


def _mesh(layout: str, device_type: str) -> DeviceMesh:
    world_size = dist.get_world_size()
    if layout == "3d" and world_size != 8:
        raise ConfigError(f"3d needs 8 ranks, got {world_size}")
    shape = (2, 2, 2) if layout == "3d" else (world_size, 1, 1)
    return init_device_mesh(device_type, shape, mesh_dim_names=("pp", "dp", "tp"))


def _part(index: int, places: _Places, mesh: DeviceMesh, options: LayoutOptions) -> nn.Sequential:
    """Returns the pieces of one stage. If they cannot be divided evenly, the first stages get one more."""
    pieces = options.model().pieces
    count = len(pieces)
    if count < places.stages:
        raise ConfigError(f"{places.stages} pipeline stages need {places.stages - 2} layers at least, got {count - 2}")
    share, left = divmod(count, places.stages)
    start = index * share + min(index, left)
    own = pieces[start : start + share + (index < left)]
    if mesh["tp"].size() > 1:
        parallelize(own, mesh["tp"], sequence_parallel=True)
    compile_blocks(own, options)
    part = nn.Sequential(*own)
    if mesh["dp"].size() > 1:
        shard(part, own, mesh["dp"], reshard_after_forward=False)  # otherwise each micro-batch would gather again
    return part


def _stage(index: int, part: nn.Module, places: _Places, mesh: DeviceMesh, options: LayoutOptions) -> PipelineStage:
    """Passes shapes, so that stages need not exchange them before the first step."""
    size, last = options.size, index == places.stages - 1
    tokens = torch.empty(options.batch, size.sequence, dtype=torch.int64, device="meta")
    between = _example(options.batch, size.sequence // mesh["tp"].size(), size.width)
    logits = _example(options.batch, size.sequence, size.vocabulary)
    return PipelineStage(
        part,
        index,
        places.stages,
        options.device,
        input_args=tokens if index == 0 else between,
        output_args=logits if last else between,
        group=mesh.get_group("pp"),
    )


def _example(*shape: int) -> Tensor:
    """Returns an example that requires a gradient, because otherwise no gradient would be sent back for it."""
    return torch.empty(shape, device="meta", requires_grad=True)


def _schedule(layout: str, stages: list[PipelineStage], micro_batches: int) -> Any:
    match layout:
        case "pp-interleaved":
            return ScheduleInterleaved1F1B([*stages], micro_batches, loss_fn=mean_loss)
        case "pp-gpipe":
            return ScheduleGPipe(stages[0], micro_batches, loss_fn=mean_loss)
    return Schedule1F1B(stages[0], micro_batches, loss_fn=mean_loss)
