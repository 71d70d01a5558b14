"""Scripts that no recovery can make exact, or that look like one: an argument names the kind."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import deadpool
from deadpool_lab.workload.run import pause

WIDTH, BATCH, STEPS = 8, 4, 8


class Script:
    """What the kinds have in common."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.out: Path = arguments.out
        self.gate, self.marker = arguments.gate, arguments.marker
        self.pool = deadpool.join(backend="gloo")
        torch.manual_seed(1)
        self.model = nn.Linear(WIDTH, WIDTH)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        samples = TensorDataset(torch.randn(STEPS * BATCH * 2, WIDTH))
        self.loader = StatefulDataLoader(samples, batch_size=BATCH)
        self.plain = DataLoader(samples, batch_size=BATCH)

    def protect(self, **objects: object):
        return self.pool.protect(model=self.model, optimizer=self.optimizer, data=self.loader, **objects)

    def backward(self, batch: list[Tensor]) -> None:
        self.model(batch[0]).square().mean().backward()
        for param in self.model.parameters():
            dist.all_reduce(param.grad)

    def wait_at_gate(self, step) -> None:
        """In step 3 all ranks wait until the test has seen what a rehearsal did."""
        if self.gate is not None and step.number == 3 and not step.dry:
            pause("before the gate")
            while not self.gate.exists():
                time.sleep(0.05)
            pause("after the gate")

    def die(self, step, at: int = 5) -> None:
        """Rank 1 ends itself once."""
        if self.marker is None or step.dry or (self.pool.rank, step.number) != (1, at) or self.marker.exists():
            return
        self.marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def train(self, batch: list[Tensor]) -> None:
        self.optimizer.zero_grad()
        self.backward(batch)
        self.optimizer.step()


def zip1(script: Script) -> None:
    """The loader comes first, so a batch is drawn before its step is asked for."""
    job = script.protect()
    for batch, step in zip(script.loader, job.steps(STEPS), strict=False):
        with step:
            script.train(batch)


def nextsteps(script: Script) -> None:
    job = script.protect()
    steps = job.steps(STEPS)
    for batch in script.loader:
        step = next(steps, None)
        if step is None:
            break
        with step:
            script.train(batch)


def zip2(script: Script) -> None:
    """Exact: the step comes first."""
    job = script.protect()
    for step, batch in zip(job.steps(STEPS), script.loader, strict=False):
        with step:
            script.train(batch)


def accum3(script: Script) -> None:
    job, batches = script.protect(), forever(script.loader)
    for step in job.steps(STEPS):
        with step:
            script.backward(next(batches))
            if step.number % 3 == 2:
                script.optimizer.step()
                script.optimizer.zero_grad()


def accum_in_step(script: Script) -> None:
    """Exact: two batches in each step, gradients as zeros or dropped, before or after the update, an evaluation."""
    job, batches = script.protect(), forever(script.loader)
    for step in job.steps(STEPS):
        with step:
            script.optimizer.zero_grad(set_to_none=step.number % 2 == 0)
            for _ in range(2):
                script.backward(next(batches))
            handle = dist.all_reduce(torch.ones(1), async_op=True)
            handle.wait()
            script.optimizer.step()
            if step.number > 4:
                script.optimizer.zero_grad(set_to_none=step.number % 2 == 1)
            with torch.no_grad():
                for (batch,) in script.plain:
                    script.model(batch)


def plainloader(script: Script) -> None:
    job, batches = script.protect(), iter(script.plain)
    for step in job.steps(STEPS):
        with step:
            script.train(next(batches))


def asynchandle(script: Script) -> None:
    job, batches = script.protect(), forever(script.loader)
    value, handle = torch.zeros(1), None
    for step in job.steps(STEPS):
        with step:
            if handle is not None:
                handle.wait()
            script.train(next(batches))
            value.fill_(float(step.number))
            handle = dist.all_reduce(value, async_op=True)


def cut_handle(script: Script) -> None:
    """Exact: the handle is waited for in its step, if that is not cut off."""
    job, batches, handles = script.protect(), forever(script.loader), []
    for step in job.steps(STEPS):
        with step:
            handles[:] = [dist.all_reduce(torch.zeros(1), async_op=True)]
            script.die(step, at=4)
            script.train(next(batches))
            handles[0].wait()


def forkexit(script: Script) -> None:
    """Each step forks a child that ends by one of three ways. All of them end as under plain python."""
    job, batches = script.protect(), forever(script.loader)
    atexit.register(told, script, "at exit")
    for step in job.steps(3):
        with step:
            script.train(next(batches))
            child = os.fork()
            if child == 0:
                print(f"child {step.number}")
                script.model(torch.ones(1, WIDTH))
                if step.number == 1:
                    raise ValueError("of a child")
                sys.exit(7 if step.number == 0 else None)
            _, status = os.waitpid(child, 0)
            if not step.dry:
                told(script, f"step {step.number} child {os.waitstatus_to_exitcode(status)}")


def forked_to_the_end(script: Script) -> None:
    """A child leaves the loop and comes to the end of the script."""
    job, batches = script.protect(), forever(script.loader)
    for step in job.steps(3):
        with step:
            script.train(next(batches))
            if step.number == 1 and os.fork() == 0:
                break
    if job.rehearses or step.number == 1:
        return
    _, status = os.wait()
    told(script, f"child {os.waitstatus_to_exitcode(status)}")


def cleandir(script: Script) -> None:
    """Rank 0 clears the folder of its checkpoints before the loop."""
    folder = script.out / "checkpoints"
    if script.pool.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    train_and_save(script, folder)


def cleandir_loudly(script: Script) -> None:
    """As cleandir, and an error of the file system ends the script."""
    folder = script.out / "checkpoints"
    if script.pool.rank == 0 and folder.exists():
        shutil.rmtree(folder)
    train_and_save(script, folder)


def cleandir_once(script: Script) -> None:
    folder = script.out / "checkpoints"
    if deadpool.first_start and script.pool.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    train_and_save(script, folder)


def train_and_save(script: Script, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    told(script, f"first start {deadpool.first_start}")
    job, batches = script.protect(), forever(script.loader)
    for step in job.steps(STEPS):
        with step:
            script.train(next(batches))
            if script.pool.rank == 0 and not step.dry:
                (folder / f"step{step.number}").write_text("saved")
            script.wait_at_gate(step)


def openw(script: Script) -> None:
    """Each rank opens its log anew before the loop, and rank 0 writes down its configuration."""
    if script.pool.rank == 0:
        (script.out / "config.json").write_text("{}")
    log = (script.out / f"log{script.pool.rank}").open("w", buffering=1)
    log.write("begin\n")
    job, batches = script.protect(), forever(script.loader)
    for step in job.steps(STEPS):
        with step:
            script.train(next(batches))
            script.wait_at_gate(step)
            script.die(step)
            log.write(f"{step.number}\n")


def forever(loader: StatefulDataLoader) -> Iterator[list[Tensor]]:
    while True:
        yield from loader


def told(script: Script, text: str) -> None:
    with (script.out / f"told{script.pool.rank}.jsonl").open("a") as file:
        file.write(json.dumps(text) + "\n")


def reads_own_file(script: Script) -> None:
    """Rank 0 writes down how far it is, and whoever begins goes on from there if something is written."""
    state = script.out / "state.json"
    told(script, f"begins at {json.loads(state.read_text()) if state.exists() else 0}")
    job, batches = script.protect(), forever(script.loader)
    for step in job.steps(STEPS):
        with step:
            script.train(next(batches))
            if script.pool.rank == 0 and not step.dry:
                (script.out / "new").write_text(json.dumps(step.number))
                (script.out / "new").replace(state)
            script.die(step)


def ownstore(script: Script) -> None:
    """Rank 0 serves a store of the script's own, in which every rank counts its steps."""
    port = torch.tensor(0)
    store = None
    if script.pool.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, script.pool.world_size, is_master=True, wait_for_workers=False)
        port.fill_(store.port)
    dist.broadcast(port, 0)
    store = store or dist.TCPStore("127.0.0.1", int(port), script.pool.world_size)
    job = script.protect()
    for step in job.steps(STEPS):
        with step:
            store.add("steps", 1)
            script.train(next(iter(script.plain)))


KINDS: dict[str, Callable[[Script], None]] = {
    kind.__name__: kind
    for kind in (
        *(zip1, nextsteps, zip2, accum3, accum_in_step, plainloader, asynchandle, cut_handle),
        *(forkexit, forked_to_the_end, cleandir, cleandir_loudly, cleandir_once, openw, reads_own_file, ownstore),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gate", type=Path, help="a file that the ranks wait for in step 3")
    parser.add_argument("--marker", type=Path, help="made by rank 1 when it ends itself; without it, it does not")
    arguments = parser.parse_args()
    KINDS[arguments.kind](Script(arguments))


if __name__ == "__main__":
    main()
