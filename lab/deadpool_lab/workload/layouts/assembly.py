"""The result of building a parallel layout, that is a model with its optimizer, and functions that builders share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from deadpool.demo.gpt import GPT, GPTBlock, Size, mean_loss
from deadpool.errors import ConfigError

LEARNING_RATE = 1e-3
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    size: Size
    batch: int = 2  # the smallest number of sequences per rank and step
    optimizer: str = "fused"  # or foreach, or capturable
    compile_backend: str | None = None  # blocks are not compiled if it is None
    device: torch.device = CPU

    def model(self, kind: type[GPT] = GPT) -> GPT:
        """Makes the model on the CPU, so that it is the same on every rank and device."""
        torch.manual_seed(0)
        return kind(self.size).to(self.device)

    def optimizer_arguments(self) -> dict[str, Any]:
        if self.optimizer == "capturable" and self.device.type == "cpu":
            raise ConfigError("optimizer='capturable' cannot be used on the CPU: give fused or foreach")
        return {"lr": LEARNING_RATE, self.optimizer: True}


class Assembly:
    """One rank's part of the training. Subclasses define how a step is done and which ranks share the gradient norm."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, sequences: int) -> None:
        self.model, self.optimizer = model, optimizer
        self.sequences = sequences  # per step and data rank
        self.data_rank, self.data_size = dist.get_rank(), dist.get_world_size()

    def train_step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Does forward and backward, until gradients are complete. Returns the loss, or 0 on ranks without it."""
        loss = mean_loss(self.model(tokens), targets)
        loss.backward()
        return loss.detach()

    def clip(self, max_norm: float) -> None:
        """Scales all gradients so that their norm over the whole model is at most `max_norm`."""
        scale_gradients(self.model.parameters(), max_norm, self.norm())

    def norm(self) -> Tensor:
        return local_norm(self.model.parameters())


def adamw(model: nn.Module, options: LayoutOptions) -> Optimizer:
    """Makes one parameter group per mesh, because foreach and fused need tensors of one mesh."""
    groups: dict[object, list[Tensor]] = {}
    for parameter in model.parameters():
        groups.setdefault(mesh_of(parameter), []).append(parameter)
    return torch.optim.AdamW([{"params": each} for each in groups.values()], **options.optimizer_arguments())


def mesh_of(tensor: Tensor) -> object:
    return tensor.device_mesh if isinstance(tensor, DTensor) else None


def local_norm(parameters: Iterable[Tensor]) -> Tensor:
    """Returns the norm of all gradients as one vector; sharded gradients are counted whole."""
    by_mesh: dict[object, list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            by_mesh.setdefault(mesh_of(parameter.grad), []).append(parameter.grad)
    norms = [_whole(nn.utils.get_total_norm(gradients)) for gradients in by_mesh.values()]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def scale_gradients(parameters: Iterable[Tensor], max_norm: float, norm: Tensor) -> None:
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            local_part(parameter.grad).mul_(factor)


def local_part(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def compile_blocks(pieces: Iterable[nn.Module], options: LayoutOptions) -> None:
    """Compiles in place, so that parameters keep their names. Call it after tensor parallelism, and before a
    data-parallel wrapper."""
    if options.compile_backend is None:
        return
    for piece in pieces:
        if isinstance(piece, GPTBlock):
            piece.compile(backend=options.compile_backend)


def split_world(inner: int, what: str) -> int:
    """Returns how many groups of `inner` ranks there are. Raises ConfigError if some ranks would be left over."""
    world_size = dist.get_world_size()
    if world_size % inner:
        raise ConfigError(f"{what} needs a multiple of {inner} ranks, got {world_size}")
    return world_size // inner
