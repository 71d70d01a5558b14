"""An exponential moving average of a model's weights, as a module that is sharded over ranks like the model itself."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from deadpool_lab.workload.layouts.assembly import local_part


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
