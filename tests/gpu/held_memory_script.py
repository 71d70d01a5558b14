"""A script that keeps memory by its address: a CUDA graph of forward and backward, or an optimizer on flat buffers.

Gradients are reduced by hand, outside of the graph, and capturable AdamW steps. Ranks stand at gates between backward
and the reduction (mid), and behind the optimizer (post).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import deadpool

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
import json

from acts import act
from small_job import STEPS, WIDTH, inputs_of, make_model, make_parser, note_step


def flatten(model: nn.Module) -> nn.Parameter:
    """All parameters and their gradients become views of two flat tensors."""
    params = list(model.parameters())
    flat = nn.Parameter(torch.cat([param.detach().reshape(-1) for param in params]))
    flat.grad = torch.zeros_like(flat)
    start = 0
    for param in params:
        end = start + param.numel()
        param.data, param.grad = flat.data[start:end].view_as(param), flat.grad[start:end].view_as(param)
        start = end
    return flat


class Step:
    """Forward and backward into gradients that stay where they are."""

    def __init__(self, model: nn.Module, *, graphed: bool) -> None:
        self._model, self._batch, self._graph = model, torch.zeros(6, WIDTH, device="cuda"), None
        self._loss = torch.zeros((), device="cuda")
        if graphed:
            self._capture()

    def _capture(self) -> None:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                self._compute()
        torch.cuda.current_stream().wait_stream(aside)
        self._model.zero_grad(set_to_none=True)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._loss = self._compute()

    def _compute(self) -> Tensor:
        loss = self._model(self._batch).square().mean()
        loss.backward()
        return loss

    def run(self, batch: Tensor) -> Tensor:
        self._batch.copy_(batch)
        if self._graph is not None:
            self._graph.replay()
        else:
            for param in self._model.parameters():
                param.grad.zero_()
            self._loss = self._compute()
        return self._loss


parser = make_parser()
parser.add_argument("--kind", choices=["graph", "flat"], required=True)
args = parser.parse_args()
pool = deadpool.join(backend="nccl")
torch.cuda.set_device(0)
model = make_model().cuda().eval()  # no dropout: its numbers would be those of the graph
params = [flatten(model)] if args.kind == "flat" else list(model.parameters())
optimizer = torch.optim.AdamW(params, lr=1e-2, capturable=True)
work = Step(model, graphed=args.kind == "graph")
job = pool.protect(model=model, optimizer=optimizer)
args.out.mkdir(parents=True, exist_ok=True)
with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
    for step in job.steps(STEPS):
        with step:
            loss = work.run(inputs_of(step.number, pool.rank).cuda())
            if not step.dry:
                act(step.number)
            for param in params:
                dist.all_reduce(param.grad)
                param.grad /= pool.world_size
            optimizer.step()
            if not step.dry:
                act(100 + step.number)
            dist.all_reduce(torch.ones(1, device="cuda"))  # so that survivors are cut off behind their optimizers
            if not step.dry:
                note_step(file, step.number, loss)
    print(json.dumps({"digest": job.digest()}), file=file)
dist.destroy_process_group()
