"""The device, the data and the averages of the workload.

`take_device` chooses the device that a rank of the workload trains on, and makes its training repeatable bit for
bit.

`WeightAverage`: an exponential moving average of a model's weights, as a module that is sharded over ranks like the
model itself.

`Sequences` and `Epochs`: torchdata's StatefulDataLoader over random sequences, used as in many training scripts: one
iterator is kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from deadpool.demo.gpt import Size
from deadpool_lab.workload.layouts.assembly import local_part

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def take_device(kind: str) -> torch.device:
    """Call it before the first group is made. Ranks share a GPU if a node has fewer GPUs than trainers."""
    if kind == "cpu":
        return torch.device("cpu")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts; without it sums vary by stream
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    _be_deterministic()
    return device


def _be_deterministic() -> None:
    """Computes attention by plain matrix products. Some fused kernels for float32 add up gradients in any order, and
    the choice of a kernel depends on shapes, version and GPU. The workload is so small that speed does not matter."""
    torch.use_deterministic_algorithms(True)
    # The workload reads no memory that it has not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


class WeightAverage(nn.Module):
    """The averages are parameters that no optimizer has; those of a sharded model are sharded in the same way."""

    def __init__(self, weights: Iterable[Tensor], decay: float) -> None:
        super().__init__()
        self._followed = list(weights)  # read once: in mid-step a wrapper may show other tensors under the same names
        self._decay = decay
        self.averages = nn.ParameterList(
            nn.Parameter(weight.detach().clone(), requires_grad=False) for weight in self._followed
        )

    @torch.no_grad()
    def update(self) -> None:
        """Updates the averages. Call it after the optimizer's step: until then the last version may still be copied."""
        for average, weight in zip(self.averages, self._followed, strict=True):
            local_part(average).lerp_(local_part(weight), 1.0 - self._decay)


STEPS_PER_EPOCH = 5  # few, so that short runs have several epochs


class Sequences(Dataset[Tensor]):
    def __init__(self, size: Size, count: int) -> None:
        self._size, self._count = size, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(1_000_003 + index)
        return torch.randint(self._size.vocabulary, (self._size.sequence + 1,), generator=generator)


def make_loader(size: Size, *, sequences: int, data_rank: int, data_size: int) -> Any:
    """Makes a loader of `sequences` per step. Each epoch is shuffled; ranks with the same data rank get the same."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import RandomSampler

    dataset = Sequences(size, STEPS_PER_EPOCH * sequences * data_size)
    own = torch.utils.data.Subset(dataset, range(data_rank, len(dataset), data_size))
    # The sampler has its own generator: if the loader drew from it too, torchdata would restore a wrong state.
    sampler = RandomSampler(own, generator=torch.Generator().manual_seed(data_rank))
    return StatefulDataLoader(own, batch_size=sequences, sampler=sampler)


class Epochs:
    """Endless batches from a loader. Its only state is the iterator."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._iterator: Iterator[Tensor] = iter(loader)

    def __next__(self) -> tuple[Tensor, Tensor]:
        try:
            tokens = next(self._iterator)
        except StopIteration:
            self._iterator = iter(self._loader)
            tokens = next(self._iterator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
