"""Steps as some people write them: one argument names the case. The victim ends itself once, where it is told to."""

from __future__ import annotations

import argparse
import copy
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import deadpool

WIDTH, BATCH, STEPS, VICTIM, FATAL = 8, 4, 9, 1, 5


class Two(nn.Module):
    """Two steps by one way, two by the other."""

    def __init__(self) -> None:
        super().__init__()
        self.ways = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor, number: int) -> Tensor:
        return self.ways[number // 2 % 2](x)


class Job:
    """What the cases have in common. `train` is one step of a case."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.pool = deadpool.join(backend="gloo")
        self.rank, self.marker = self.pool.rank, arguments.marker
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

    def average(self, model: nn.Module) -> None:
        for param in model.parameters():
            if param.grad is not None:
                dist.all_reduce(param.grad)
                param.grad /= self.pool.world_size

    def die(self, number: int) -> None:
        if (self.rank, number) == (VICTIM, FATAL) and self.marker is not None and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def zero_is_not_none(job: Job) -> None:
    """Gradients are kept as zeros, and a step does not use all parameters: momentum moves the others."""
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train(number: int) -> Tensor:
        loss = model(torch.randn(BATCH, WIDTH), number).square().mean()
        loss.backward()
        job.die(number)
        job.average(model)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss.detach()

    job.run(train, model=model, optimizer=optimizer)


def update_by_hand(job: Job) -> None:
    """No optimizer of torch's: nobody says when the parameters change."""
    model = nn.Linear(WIDTH, WIDTH)

    def train(number: int) -> Tensor:
        loss = model(torch.randn(BATCH, WIDTH)).square().mean()
        loss.backward()
        job.average(model)
        with torch.no_grad():
            for param in model.parameters():
                param -= 0.1 * param.grad
                param.grad = None
        job.die(number)
        dist.barrier()
        return loss.detach()

    job.run(train, model=model)


def teacher_first(job: Job) -> None:
    """A teacher follows at the start of a step, long before the optimizer steps, while the last version is copied."""
    model = nn.Linear(WIDTH, WIDTH)
    teacher = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(number: int) -> Tensor:
        with torch.no_grad():
            for slow, quick in zip(teacher.parameters(), model.parameters(), strict=True):
                slow.lerp_(quick, 0.5)
        x = torch.randn(BATCH, WIDTH)
        loss = (model(x) - teacher(x.flip(0)).detach()).square().mean()
        loss.backward()
        job.die(number)
        job.average(model)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    job.run(train, model=model, optimizer=optimizer, teacher=teacher)


def thawed_and_frozen(job: Job) -> None:
    """A layer begins to learn in step 3, and the statistics of another one end: said once, in that step."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    def train(number: int) -> Tensor:
        if number == 3:
            model[0].requires_grad_(True)
            model[1].eval()
        loss = model(torch.randn(BATCH, WIDTH)).square().mean()
        loss.backward()
        job.die(number)
        job.average(model)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    job.run(train, model=model, optimizer=optimizer)


def second_order(job: Job) -> None:
    """LBFGS: forward, backward and collectives inside of its step, and a history in lists."""
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=3, history_size=3)

    def train(number: int) -> Tensor:
        x = torch.randn(BATCH, WIDTH)
        calls = []

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (model(x) - x).square().mean()
            loss.backward()
            calls.append(number)
            if len(calls) == 2:
                job.die(number)
            job.average(model)
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            return mean / job.pool.world_size

        return optimizer.step(closure)

    job.run(train, model=model, optimizer=optimizer)


def many_parameters(job: Job) -> None:
    """5,000 of them, each with its state of the optimizer; their gradients are reduced as one tensor."""
    model = nn.ParameterList(torch.randn(2) for _ in range(5000))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def train(number: int) -> Tensor:
        optimizer.zero_grad()
        loss = (torch.stack(list(model)) - torch.randn(2)).square().mean()
        loss.backward()
        job.die(number)
        gradients = torch.stack([param.grad for param in model])
        dist.all_reduce(gradients)
        for param, gradient in zip(model, gradients, strict=True):
            param.grad.copy_(gradient)
        optimizer.step()
        return loss.detach()

    job.run(train, model=model, optimizer=optimizer)


CASES = {
    case.__name__: case
    for case in (zero_is_not_none, update_by_hand, teacher_first, thawed_and_frozen, second_order, many_parameters)
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--marker", type=Path, help="made by the victim when it ends itself; without it nobody does")
    arguments = parser.parse_args()
    CASES[arguments.case](Job(arguments))


if __name__ == "__main__":
    main()
