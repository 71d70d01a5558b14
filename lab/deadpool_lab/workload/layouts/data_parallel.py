"""Layouts in which every rank has the whole model: gradients reduced by hand, several uses of DDP, DDP with ZeRO-1."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from deadpool.demo.gpt import GPT, BranchingGPT, mean_loss
from deadpool_lab.workload.layouts.assembly import Assembly, LayoutOptions, adamw, compile_blocks

MICRO_BATCHES = 2


def build(layout: str, options: LayoutOptions) -> Assembly:
    branching = layout == "ddp-unused"
    model = options.model(BranchingGPT if branching else GPT)
    compile_blocks(model.modules(), options)
    if layout == "plain":
        return ReducedByHand(model, adamw(model, options), options.batch)
    wrapped = DistributedDataParallel(model, find_unused_parameters=branching)
    if layout == "ddp-accumulate":
        return Accumulating(wrapped, adamw(wrapped, options), _rounded_up(options.batch, MICRO_BATCHES))
    if layout == "zero1":
        sharded = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.AdamW, **options.optimizer_arguments())
        return Assembly(wrapped, sharded, options.batch)
    return Assembly(wrapped, adamw(wrapped, options), options.batch)


class ReducedByHand(Assembly):
    def train_step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        loss = super().train_step(tokens, targets)
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(dist.get_world_size())
        return loss


class Accumulating(Assembly):
    """Does several backward passes per step, of which only the last one reduces gradients."""

    model: DistributedDataParallel

    def train_step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        *early, last = zip(tokens.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES), strict=True)
        with self.model.no_sync():
            losses = [self._micro_step(*batch) for batch in early]
        losses.append(self._micro_step(*last))
        return torch.stack(losses).sum()

    def _micro_step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        loss = mean_loss(self.model(tokens), targets) / MICRO_BATCHES
        loss.backward()
        return loss.detach()


def _rounded_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
