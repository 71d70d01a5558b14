"""What runs in a child process of these tests: a small training job on real groups that can lose a rank.

The parent is backend_fleet.py. A thread reads what the parent says; "abort" is obeyed at once, the rest waits for the
main thread. Imported by the forkserver before the first test, so that a child starts with torch loaded.
"""

from __future__ import annotations

import faulthandler
import hashlib
import os
import queue
import signal
import threading
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first use of DTensor would load it, in every child
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from deadpool.backend.groups import Groups
from deadpool.trainer.adapters import Adapter, adapters_for, fsdp2

WIDTH = 16
LAYERS = 6
GROUP_TIMEOUT_S = 3600.0
"""Longer than any test may take: whatever ends a wait here, it was not its own time-out."""
faulthandler.enable()  # the parent ends a child that hangs by SIGABRT, to see where it stands


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One job: what is trained and what goes wrong."""

    framework: str
    directory: str
    world_size: int = 4
    steps: int = 4
    victim: int = -1
    dies_at_step: int = -1
    dies_in: str = "backward"
    resume_step: int = -1
    """Where work resumes; -1 is the newest step that all ranks have."""
    omitted: str = ""
    """What a control test leaves out."""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.odd = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor, with_odd: bool) -> torch.Tensor:
        # Not in order of registration, so that the final bucket layout of DDP is another than the first.
        for index in (0, 2, 1, 3, 5, 4):
            inputs = torch.tanh(self.layers[index](inputs))
        return self.odd(inputs) if with_odd else inputs


class Job:
    """One rank's training objects."""

    def __init__(self, scenario: Scenario, rank: int) -> None:
        self._scenario = scenario
        self._rank = rank
        torch.manual_seed(7)
        self.plain = Model()
        self.model = _wrap(self.plain, scenario)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, foreach=False)
        self.adapters = adapters_for([self.model])
        self.step = 0

    @property
    def middle(self) -> nn.Module:
        """Whose backward comes half-way."""
        return self.plain.layers[LAYERS // 2]

    def begin_recording(self) -> None:
        """Only pipelines have anything to record."""

    def train_one(self) -> float:
        generator = torch.Generator().manual_seed(100 * self.step + self._rank)
        inputs = torch.randn(8, WIDTH, generator=generator)
        loss = self.model(inputs, self.with_odd).square().mean()
        loss.backward()
        if self._scenario.framework == "plain":
            self._all_reduce()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item()

    @property
    def with_odd(self) -> bool:
        return self._scenario.framework != "ddp-unused" or self.step % 2 == 1

    def rehearse(self) -> None:
        with ExitStack() as stack:
            for adapter in self.adapters:
                stack.enter_context(adapter.rehearsing())
            for _ in range(max(adapter.dry_steps for adapter in self.adapters)):
                self.train_one()

    def reset(self) -> None:
        for adapter in self._adapters_in_use():
            adapter.reset()

    def seated(self, step: int) -> None:
        for adapter in self._adapters_in_use():
            if self._scenario.omitted != f"{adapter.name}.seated":
                adapter.seated(step)
        if self._scenario.omitted != "gradients":
            self.model.zero_grad(set_to_none=True)  # they are state: in a job ProtectedState puts them back

    def save(self) -> None:
        path = self._file(self.step)
        torch.save([self._parameters(), self._moments(), self.step], path.with_suffix(".tmp"))
        path.with_suffix(".tmp").rename(path)

    def load(self, step: int) -> None:
        parameters, moments, self.step = torch.load(self._file(step))
        self.optimizer.state.clear()
        with torch.no_grad():
            for mine, saved, its_moments in zip(self.model.parameters(), parameters, moments, strict=True):
                _local(mine).copy_(saved)
                for key, value in its_moments.items():
                    self.optimizer.state[mine][key] = _like(mine, value)

    def digest(self) -> str:
        hashed = hashlib.sha256()
        for tensor in (*self._parameters(), *(value for each in self._moments() for value in each.values())):
            hashed.update(tensor.numpy().tobytes())
        return hashed.hexdigest()

    def _adapters_in_use(self) -> list[Adapter]:
        return [each for each in self.adapters if each.name != self._scenario.omitted]

    def _all_reduce(self) -> None:
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= self._scenario.world_size

    def _file(self, step: int) -> Path:
        return Path(self._scenario.directory) / f"rank{self._rank}-step{step}.pt"

    def _parameters(self) -> list[torch.Tensor]:
        return [_local(parameter.detach()) for parameter in self.model.parameters()]

    def _moments(self) -> list[dict[str, torch.Tensor]]:
        state = self.optimizer.state
        return [
            {key: _local(value) for key, value in sorted(state.get(parameter, {}).items())}
            for parameter in self.model.parameters()
        ]


def _local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _like(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if value.dim() == 0:  # the optimizer's step count
        return value
    moment = torch.zeros_like(parameter)
    _local(moment).copy_(value)
    return moment


def _wrap(model: Model, scenario: Scenario) -> nn.Module:
    match scenario.framework:
        case "plain":
            return model
        case "ddp":
            return DistributedDataParallel(model, bucket_cap_mb=0.003)
        case "ddp-view":
            return DistributedDataParallel(model, bucket_cap_mb=0.003, gradient_as_bucket_view=True)
        case "ddp-static":
            return DistributedDataParallel(model, bucket_cap_mb=0.003, static_graph=True)
        case "ddp-unused":
            return DistributedDataParallel(model, bucket_cap_mb=0.003, find_unused_parameters=True)
        case "fsdp2":
            return _shard(model, (scenario.world_size,), ("shard",))
        case "hsdp":
            return _shard(model, (2, scenario.world_size // 2), ("replicate", "shard"))
    raise AssertionError(scenario.framework)


def _shard(model: Model, shape: tuple[int, ...], names: tuple[str, ...]) -> nn.Module:
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def make_job(scenario: Scenario, rank: int) -> Job:
    if scenario.framework.startswith("pp"):
        from pipeline_job import PipelineJob

        return PipelineJob(scenario, rank)
    return Job(scenario, rank)


class Child:
    """The trainer process: runs the job, recovers when told so, reports to the parent."""

    def __init__(self, scenario: Scenario, pipe: Connection) -> None:
        self._scenario = scenario
        self._pipe = pipe
        self._inbox: queue.Queue[tuple[Any, ...]] = queue.Queue()
        self._failed = threading.Event()
        self._recovered = False
        self.groups = Groups(timeout_s=GROUP_TIMEOUT_S)
        self.groups.install()
        self.losses: dict[int, float] = {}

    def listen(self) -> None:
        while True:
            try:
                message = self._pipe.recv()
            except EOFError:
                os._exit(0)
            if message[0] == "abort":
                self._failed.set()
                self._pipe.send(("aborted", self.groups.abort()))
            else:
                self._inbox.put(message)

    def run(self) -> None:
        what, *arguments = self._inbox.get()
        job = self._start(*arguments) if what == "start" else self._stand_in(*arguments)
        while job.step < self._scenario.steps:
            try:
                self._train(job)
            except Exception:
                if self._recovered or not self._failed.wait(GROUP_TIMEOUT_S):
                    raise
                self._failed.clear()
                job.reset()
                self._pipe.send(("unwound", job.step))
                self._resume(job)
        self._pipe.send(("done", self.losses, job.digest()))
        self._inbox.get()  # the parent heard it; no peer may be cut off before it has finished too
        dist.destroy_process_group()

    def _start(self, rank: int, port: int) -> Job:
        store = connect(port)
        size = self._scenario.world_size
        self.groups.init(backend="gloo", store=store, rank=rank, world_size=size, detached=False)
        job = make_job(self._scenario, rank)
        job.begin_recording()
        job.save()
        if rank == self._scenario.victim:
            self._prepare_death(job)
        return job

    def _prepare_death(self, job: Job) -> None:
        if self._scenario.dies_in == "backward":
            job.middle.register_full_backward_pre_hook(lambda *_: self._die(job))
        else:
            job.model.register_forward_pre_hook(lambda *_: self._die(job))

    def _die(self, job: Job) -> None:
        if job.step == self._scenario.dies_at_step:
            os.kill(os.getpid(), signal.SIGKILL)

    def _stand_in(self, rank: int, rehearse: bool) -> Job:
        size = self._scenario.world_size
        self.groups.init(backend="gloo", store=dist.HashStore(), rank=rank, world_size=size, detached=True)
        job = make_job(self._scenario, rank)
        if rehearse:
            job.rehearse()
        job.step = -1  # knows nothing yet
        self._pipe.send(("ready", None))
        self._resume(job)
        return job

    def _resume(self, job: Job) -> None:
        what, step, port, prefix = self._inbox.get()
        assert what == "resume"
        if job.step != step:
            job.load(step)
        job.seated(step)
        self.groups.rebuild(connect(port), prefix, after_abort=self.groups.abort_count)
        self._recovered = True

    def _train(self, job: Job) -> None:
        step = job.step
        self.losses[step] = job.train_one()
        job.save()


def connect(port: int) -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=GROUP_TIMEOUT_S))


def main(scenario: Scenario, pipe: Connection) -> None:
    torch.set_num_threads(1)
    if scenario.omitted == "fsdp2.gradients":
        fsdp2._drop_gradients = lambda group: None
    child = Child(scenario, pipe)
    threading.Thread(target=child.listen, daemon=True).start()
    try:
        child.run()
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))
        os._exit(1)


def call(function: Any, arguments: tuple[Any, ...], pipe: Connection) -> None:
    """Runs a function in a child and sends back what it returns or raises."""
    torch.set_num_threads(1)
    try:
        pipe.send(("done", function(*arguments)))
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))
        os._exit(1)
