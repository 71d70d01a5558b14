"""AdamW for parameters of low precision: it trains float32 copies of them, the master weights, which are its state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw


class MasterAdamW(Optimizer):
    """state[p] has master, exp_avg, exp_avg_sq (float32, in the shape of p) and step, from the beginning."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        for group in self.param_groups:
            for parameter in group["params"]:
                master = parameter.detach().to(torch.float32, copy=True)
                self.state[parameter] = {
                    "master": master,
                    "exp_avg": torch.zeros_like(master),
                    "exp_avg_sq": torch.zeros_like(master),
                    "step": torch.zeros((), device=master.device),
                }

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "MasterAdamW takes no closure"
        for group in self.param_groups:
            self._update(group, [p for p in group["params"] if p.grad is not None])

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        if not parameters:
            return
        states = [self.state[parameter] for parameter in parameters]
        masters = [state["master"] for state in states]
        adamw(
            masters,
            [parameter.grad.float() for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        torch._foreach_copy_(parameters, masters)
