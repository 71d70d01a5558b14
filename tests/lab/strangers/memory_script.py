"""Scripts that hold, exchange or move the memory of parameters and gradients: one argument names the case.

The victim ends itself once, in step FATAL: before the optimizer (`mid`), or after it and before the step ends (`post`).
All other ranks have come to the same place by then, because each waits there for a sum with all others.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.utils.prune
from torch import Tensor, nn

import deadpool
from deadpool_lab.workload.run import pause

WIDTH, BATCH, STEPS, VICTIM, FATAL, LATER = 8, 4, 9, 1, 5, 3


class Job:
    """What the cases have in common. `train` is one step of a case."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.pool = deadpool.join(backend="gloo")
        self.rank, self.marker, self.moment = self.pool.rank, arguments.marker, arguments.moment
        self.record = arguments.out / f"rank{self.rank}.jsonl"
        arguments.out.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(1)

    def run(self, train: Callable[[int], Tensor], **objects: object) -> None:
        job = self.pool.protect(**objects)
        for step in job.steps(STEPS):
            with step:
                loss = train(step.number)
                if not step.dry:
                    self.note(step=step.number, loss=float(loss).hex(), draws=[repr(float(torch.rand(())))], batch="")
        self.note(digest=job.digest())

    def note(self, **entries: object) -> None:
        with self.record.open("a") as file:
            file.write(json.dumps(entries) + "\n")

    def at(self, moment: str, number: int) -> None:
        """Every rank comes here in each step. The victim goes no further in one of them."""
        if (self.rank, number, self.moment) == (VICTIM, FATAL, moment) and self.marker and not self.marker.exists():
            pause("before the gate")
            while not self.marker.with_name("gate").exists():
                time.sleep(0.01)
            pause("after the gate")
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.zeros(1))

    def average(self, gradients: list[Tensor]) -> None:
        for each in gradients:
            dist.all_reduce(each)
            each /= self.pool.world_size

    def average_of(self, model: nn.Module) -> None:
        self.average([param.grad for param in model.parameters() if param.grad is not None])


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def sample() -> Tensor:
    return torch.randn(BATCH, WIDTH)


def flatten(tensors: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Returns one flat tensor with these contents, and views of it in their shapes."""
    flat = torch.cat([each.detach().flatten() for each in tensors])
    views = [view.view_as(each) for view, each in zip(flat.split([t.numel() for t in tensors]), tensors, strict=True)]
    return flat, views


# --- gradients that the script holds ---------------------------------------------------------------------------------


def flatgrad(job: Job) -> None:
    """All gradients are views of one buffer, which is reduced by one call."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    flat, views = flatten([torch.zeros_like(param) for param in model.parameters()])
    for param, view in zip(model.parameters(), views, strict=True):
        param.grad = view

    def train(number: int) -> Tensor:
        flat.zero_()
        loss = model(sample()).square().mean()
        loss.backward()
        job.at("mid", number)
        job.average([flat])
        optimizer.step()
        job.at("post", number)
        return loss.detach()

    job.run(train, model=model, optimizer=optimizer)


def held(job: Job) -> None:
    """The gradients of the first step are kept in a list, and reduced from there."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    gradients: list[Tensor] = []

    def train(number: int) -> Tensor:
        loss = model(sample()).square().mean()
        loss.backward()
        if not gradients:
            gradients.extend(param.grad for param in model.parameters())
        job.at("mid", number)
        job.average(gradients)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        job.at("post", number)
        return loss.detach()

    job.run(train, model=model, optimizer=optimizer)


def graphlike(job: Job) -> None:
    """Gradients are written where they lay in the first step, as by a CUDA graph."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    static = [param.grad for param in model.parameters()]

    def train(number: int) -> Tensor:
        loss = model(sample()).square().mean()
        for place, fresh in zip(static, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            place.copy_(fresh)
        job.at("mid", number)
        job.average(static)
        optimizer.step()
        job.at("post", number)
        return loss.detach()

    job.run(train, model=model, optimizer=optimizer)


def flatopt(job: Job) -> None:
    """The optimizer steps one flat parameter, of which the model's parameters and gradients are views."""
    model = net()
    flat = nn.Parameter(flatten(list(model.parameters()))[0])
    flat.grad = torch.zeros_like(flat)
    sizes = [param.numel() for param in model.parameters()]
    parts = zip(model.parameters(), flat.data.split(sizes), flat.grad.split(sizes), strict=True)
    for param, data, grad in parts:
        param.data, param.grad = data.view_as(param), grad.view_as(param)
    optimizer = torch.optim.AdamW([flat], lr=0.05)

    def train(number: int) -> Tensor:
        flat.grad.zero_()
        loss = model(sample()).square().mean()
        loss.backward()
        job.at("mid", number)
        job.average([flat.grad])
        optimizer.step()
        job.at("post", number)
        return loss.detach()

    job.run(train, model=model, optimizer=optimizer)


# --- memory under parameters, and writes that torch does not count ---------------------------------------------------


def emaswap(job: Job) -> None:
    """An evaluation runs on averaged weights, which are put under the parameters for a while."""
    model = net()
    average = {name: param.detach().clone() for name, param in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

    def train(number: int) -> Tensor:
        loss = model(sample()).square().mean()
        loss.backward()
        job.at("mid", number)
        job.average_of(model)
        optimizer.step()
        optimizer.zero_grad()
        for name, param in model.named_parameters():
            average[name].lerp_(param.detach(), 0.2)
        own = {name: param.data for name, param in model.named_parameters()}
        for name, param in model.named_parameters():
            param.data = average[name]
        with torch.no_grad():
            loss = loss.detach() + model(torch.ones(1, WIDTH)).sum()
        job.at("post", number)
        for name, param in model.named_parameters():
            param.data = own[name]
        return loss

    job.run(train, model=model, optimizer=optimizer, average=average)


def moco(job: Job) -> None:
    """A key encoder follows at the start of the step, by assignments to `.data`."""
    model = net()
    keys = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train(number: int) -> Tensor:
        for slow, quick in zip(keys.parameters(), model.parameters(), strict=True):
            slow.data = slow.data * 0.7 + quick.data * 0.3
        x = sample()
        loss = (model(x) - keys(x.flip(0))).square().mean()
        loss.backward()
        job.at("mid", number)
        job.average_of(model)
        optimizer.step()
        optimizer.zero_grad()
        job.at("post", number)
        return loss.detach()

    job.run(train, model=model, optimizer=optimizer, keys=keys)


def _by_hand(job: Job, move: Callable[[nn.Module, list[Tensor]], None]) -> None:
    """A step without an optimizer. The parameters have moved when the victim ends."""
    model = net()

    def train(number: int) -> Tensor:
        loss = model(sample()).square().mean()
        gradients = list(torch.autograd.grad(loss, list(model.parameters())))
        job.average(gradients)
        move(model, gradients)
        job.at("mid", number)
        job.at("post", number)
        return loss.detach()

    job.run(train, model=model)


def v2p(job: Job) -> None:
    def move(model: nn.Module, gradients: list[Tensor]) -> None:
        vector = nn.utils.parameters_to_vector(model.parameters())
        step = torch.cat([each.flatten() for each in gradients])
        nn.utils.vector_to_parameters(vector.detach() - 0.1 * step, model.parameters())

    _by_hand(job, move)


def dataassign(job: Job) -> None:
    def move(model: nn.Module, gradients: list[Tensor]) -> None:
        for param, gradient in zip(model.parameters(), gradients, strict=True):
            param.data = param.data - 0.1 * gradient

    _by_hand(job, move)


def datasub(job: Job) -> None:
    def move(model: nn.Module, gradients: list[Tensor]) -> None:
        for param, gradient in zip(model.parameters(), gradients, strict=True):
            param.data.sub_(0.1 * gradient)

    _by_hand(job, move)


def numpywrite(job: Job) -> None:
    def move(model: nn.Module, gradients: list[Tensor]) -> None:
        for param, gradient in zip(model.parameters(), gradients, strict=True):
            array = param.detach().numpy()
            array -= 0.1 * gradient.numpy()

    _by_hand(job, move)


def flatparam(job: Job) -> None:
    """All parameters are views of one buffer, which the script moves."""
    buffers: list[Tensor] = []

    def move(model: nn.Module, gradients: list[Tensor]) -> None:
        if not buffers:
            flat, views = flatten(list(model.parameters()))
            buffers.append(flat)
            for param, view in zip(model.parameters(), views, strict=True):
                param.data = view
        buffers[0].sub_(torch.cat([each.flatten() for each in gradients]), alpha=0.1)

    _by_hand(job, move)


# --- parameters that are exchanged -----------------------------------------------------------------------------------


class Codebook(nn.Module):
    """Its forward pass assigns the table anew, as some VQ-VAEs do."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WIDTH, WIDTH)
        self.table.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        nearest = torch.cdist(x.detach(), self.table.weight).argmin(1)
        sums = torch.zeros_like(self.table.weight).index_add_(0, nearest, x.detach())
        dist.all_reduce(sums)
        self.table.weight = nn.Parameter(self.table.weight * 0.9 + sums * 0.1, requires_grad=False)
        return x + (self.table(nearest) - x).detach()


def vqema(job: Job) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Codebook(), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

    def train(number: int) -> Tensor:
        loss = model(sample()).square().mean()
        loss.backward()
        job.at("mid", number)
        job.average_of(model)
        optimizer.step()
        optimizer.zero_grad()
        job.at("post", number)
        return loss.detach()

    job.run(train, model=model, optimizer=optimizer)


def _changed_later(
    job: Job, change: Callable[[nn.Sequential, torch.optim.Optimizer], torch.optim.Optimizer | None]
) -> None:
    """Something is changed once, in step LATER. `change` may return another optimizer to go on with."""
    model = net()
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.05)]

    def train(number: int) -> Tensor:
        if number == LATER:
            optimizers.append(change(model, optimizers[0]) or optimizers[0])
        loss = model(sample()).square().mean()
        loss.backward()
        job.at("mid", number)
        job.average_of(model)
        optimizers[-1].step()
        model.zero_grad()
        job.at("post", number)
        return loss.detach()

    job.run(train, model=model, optimizer=optimizers[0])


def headreset(job: Job) -> None:
    """The optimizer keeps the parameters of the old head, as a script may well forget."""

    def change(model: nn.Sequential, _: torch.optim.Optimizer) -> None:
        model[2] = nn.Linear(WIDTH, WIDTH)

    _changed_later(job, change)


def prunelater(job: Job) -> None:
    def change(model: nn.Sequential, _: torch.optim.Optimizer) -> None:
        nn.utils.prune.l1_unstructured(model[2], "weight", 0.5)

    _changed_later(job, change)


def grow(job: Job) -> None:
    def change(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
        model.append(nn.Linear(WIDTH, 2 * WIDTH))
        optimizer.add_param_group({"params": list(model[3].parameters())})

    _changed_later(job, change)


def newopt(job: Job) -> None:
    def change(model: nn.Sequential, _: torch.optim.Optimizer) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    _changed_later(job, change)


CASES = {
    case.__name__: case
    for case in (
        *(flatgrad, held, graphlike, flatopt, emaswap, moco, v2p, dataassign, datasub, numpywrite, flatparam),
        *(vqema, headreset, prunelater, grow, newopt),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--moment", choices=("mid", "post"), default="mid")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--marker", type=Path, help="made by the victim when it ends itself; without it nobody does")
    arguments = parser.parse_args()
    CASES[arguments.case](Job(arguments))


if __name__ == "__main__":
    main()
