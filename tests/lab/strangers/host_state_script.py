"""State beside parameters as some scripts keep it: in attributes, in assigned buffers, in state dicts of their own. One
argument names the kinds, another the moment at which the victim ends itself."""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.ao import quantization

import deadpool

WIDTH, BATCH, STEPS, VICTIM, CHANGE, FATAL = 8, 4, 9, 1, 3, 6
MOMENTS = ("mid", "post")


class Kind(nn.Module):
    """A layer that keeps state in one way. All kinds of a job are run one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def prepare(self, number: int) -> None:
        """What the script does at the start of a step."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def finish(self) -> None:
        """What the script does after the optimizer."""


class DropoutP(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def prepare(self, number: int) -> None:
        if number == CHANGE:
            self.dropout.p = 0.1

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.layer(x))


class NormMomentum(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def prepare(self, number: int) -> None:
        if number == CHANGE:
            self.norm.momentum = 0.7

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.layer(x))
        return y + self.norm.running_mean


class Counter(Kind):
    """A temperature that falls, a count, a phase by its name and a pair of limits."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature, self.calls, self.phase, self.limits = 2.0, 0, None, (-1.0, 1.0)

    def prepare(self, number: int) -> None:
        if number == CHANGE:
            self.phase, self.limits, self.late = "late", (-0.5, 0.5), True

    def forward(self, x: Tensor) -> Tensor:
        self.temperature *= 0.9
        self.calls += 1
        y = self.layer(x) / self.temperature
        y = y.clamp(*self.limits) if self.phase == "late" and self.late else y
        return y + 0.01 * self.calls


class OwnState(Kind):
    """Saves and loads a list by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.history = [1.0]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "history"] = list(self.history)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any) -> None:
        self.history = list(state_dict.pop(prefix + "history"))
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        self.history.append(float(y.detach().mean()) + sum(self.history[-2:]))
        return y * (1.0 + 0.01 * sum(self.history))


class PrevCur(Kind):
    """Two buffers that are one tensor during a step, and two at its end; a third becomes a part of a fourth."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("cur", "prev", "sums", "part"):
            self.register_buffer(name, torch.zeros(WIDTH))

    def prepare(self, number: int) -> None:
        if number == CHANGE:
            self.part = self.sums[2:5]
        self.before = self.prev.sum()
        self.prev = self.cur

    def forward(self, x: Tensor) -> Tensor:
        self.y = self.layer(x) + 0.1 * self.cur - 0.3 * self.before
        return self.y + self.part.mean()

    def finish(self) -> None:
        self.cur = 0.5 * self.cur + self.y.detach().mean(0)
        self.sums += self.cur


class DataBuffer(Kind):
    """A buffer that is a slice of the data set."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.data = torch.randn(4, BATCH, WIDTH, generator=torch.Generator().manual_seed(rank))
        self.register_buffer("last", torch.zeros(BATCH, WIDTH))

    def prepare(self, number: int) -> None:
        self.now = self.data[number % 4]

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x + self.now - 0.5 * self.last)
        self.last = self.now
        return y


class Expanded(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(1).expand(BATCH, WIDTH))

    def prepare(self, number: int) -> None:
        if number == CHANGE:
            self.mask = torch.full((WIDTH,), 0.5).cumsum(0).expand(BATCH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.mask


class Resized(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        count = self.seen.numel()
        self.seen.resize_(count + 1)
        self.seen[count] = y.detach().mean()
        return y + self.seen.sum()


class Sparse(Kind):
    """A graph: its edges are coalesced at first, later they are not."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.eye(WIDTH).to_sparse())
        self.register_buffer("rows", torch.eye(WIDTH).to_sparse_csr())

    def prepare(self, number: int) -> None:
        if number == CHANGE:
            self.edges = torch.sparse_coo_tensor([[0, 0, 2], [1, 1, 3]], [0.1, 0.2, 0.3], (WIDTH, WIDTH))
        if number > CHANGE:
            self.edges._values().mul_(1.1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y + (self.edges @ y.detach().t()).t() + (self.rows @ y.detach().t()).t() + self.edges._nnz()


class Quantised(Kind):
    """Quantisation-aware training: observers resize their buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer.qconfig = quantization.get_default_qat_qconfig("fbgemm")
        self.train()
        quantization.prepare_qat(self, inplace=True)


class CountingSGD(torch.optim.SGD):
    """Its rate depends on an attribute that its state dict has."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.05, momentum=0.9)
        self.steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        for group in self.param_groups:
            group["lr"] = 0.05 / self.steps
        return super().step(closure)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state_dict = dict(state_dict)
        self.steps = state_dict.pop("steps")
        super().load_state_dict(state_dict)


KINDS = {
    "dropoutp": DropoutP,
    "bnmomentum": NormMomentum,
    "counter": Counter,
    "modstate": OwnState,
    "prevcur": PrevCur,
    "databuffer": DataBuffer,
    "expanded": Expanded,
    "resizebuf": Resized,
    "sparsebuf": Sparse,
    "qat": Quantised,
    "optattr": Kind,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="+", choices=KINDS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--moment", choices=MOMENTS, default="mid")
    parser.add_argument("--marker", type=Path, help="made by the victim when it ends itself; without it nobody does")
    arguments = parser.parse_args()
    pool = deadpool.join(backend="gloo")
    torch.manual_seed(1)
    made = [KINDS[each](pool.rank) if each == "databuffer" else KINDS[each]() for each in arguments.kinds]
    model = nn.Sequential(*made)
    params = model.parameters()
    optimizer = CountingSGD(params) if "optattr" in arguments.kinds else torch.optim.SGD(params, lr=0.05, momentum=0.9)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / f"rank{pool.rank}.jsonl").open("a", buffering=1) as record:
        job = pool.protect(model=model, optimizer=optimizer)
        for entry in _train(job, model, optimizer, arguments):
            record.write(json.dumps(entry) + "\n")
        record.write(json.dumps({"digest": job.digest()}) + "\n")


def _train(job: Any, model: nn.Sequential, optimizer: Any, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for step in job.steps(STEPS):
        with step:
            for kind in model:
                kind.prepare(step.number)
            loss = model(torch.randn(BATCH, WIDTH)).square().mean()
            loss.backward()
            _die(step.number, "mid", arguments)
            _average(model)
            optimizer.step()
            for kind in model:
                kind.finish()
            _die(step.number, "post", arguments)
            optimizer.zero_grad()
            if not step.dry:
                yield {
                    "step": step.number,
                    "loss": float(loss).hex(),
                    "draws": [repr(float(torch.rand(())))],
                    "batch": "",
                }


def _average(model: nn.Module) -> None:
    for param in model.parameters():
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()


def _die(number: int, moment: str, arguments: argparse.Namespace) -> None:
    """All ranks stand here when the victim ends itself."""
    dist.barrier()
    here = (dist.get_rank(), number, moment) == (VICTIM, FATAL, arguments.moment)
    if here and arguments.marker is not None and not arguments.marker.exists():
        arguments.marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


if __name__ == "__main__":
    main()
