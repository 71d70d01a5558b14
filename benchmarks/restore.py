"""Measures how fast a lost rank's state is restored from its holder, and a survivor's state from its own slot.

    python benchmarks/restore.py --device cuda --sizes 0.1 0.5 2 8 --json out/restore.json

A holder, the newcomer's agent and its trainer (this process) are three processes on this machine, with the package's
own server, client and arena. For each size in GB the trainer captures its state (bf16 parameters, fp32 master weights
and moments) into the arena, and the agent pushes it to the holder. Then the state is wiped, pulled back and restored:
first pull, then load (`one_by_one`), and as a newcomer does it, which loads what has arrived while the rest is on its
way (`whole`). Each part is compared with the limit of the machine in the same run: two plain sockets, and a plain copy
from pinned memory. `whole_against_slower_leg` is 1 if the whole restore is as fast as the slower of these two.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec import structs
from output import give_out
from restore_processes import CAPTURED, FETCHED
from torch import Tensor, nn

from deadpool.config.environment import SECRET_VARIABLE
from deadpool.host.host_memory import room
from deadpool.protocol.seal import Extent, Geometry
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.arena.slot import Progress, region
from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer.capture.slots import Registrar
from deadpool_lab.workload.master_weights import MasterAdamW

SIZES_GB = (0.1, 0.5, 2.0, 8.0)
PROCESSES = Path(__file__).with_name("restore_processes.py")
BYTES_PER_PARAMETER = 14  # bf16 weight, and master weight and two moments in fp32
MATRIX = 4 << 20  # parameters
_PLAIN_BYTES = 1 << 30
_POLL_S = 0.001


class Trainer:
    """A state of about `size_bytes`, and the arena's two slots for it."""

    def __init__(self, size_bytes: float, device: torch.device) -> None:
        self.device = device
        count = max(2, round(size_bytes / BYTES_PER_PARAMETER / MATRIX))
        length = round(size_bytes / BYTES_PER_PARAMETER / count)
        torch.manual_seed(0)
        self.model = nn.ParameterList(torch.randn(length, device=device).bfloat16() for _ in range(count))
        self.optimizer = MasterAdamW(self.model)
        objects = {"model": self.model, "optimizer": self.optimizer}
        self.state = ProtectedState(objects, replicas={}, rank=0, node_of=lambda rank: rank)
        self.geometry = self.state.measure()
        self.arena = Segment.create("bench-own", self.geometry, 2)
        self.arena.prefault()
        self._registrar = Registrar(lambda what, **detail: print(what, detail, file=sys.stderr))
        if device.type != "cpu":
            self._registrar.enable()
        self._registrar.add(0, self.arena)
        self._registrar.await_ready(0)
        self.record_bytes = 0

    def tensors(self) -> list[Tensor]:
        states = (self.optimizer.state[parameter] for parameter in self.model)
        return [*(each.detach() for each in self.model), *(value for state in states for value in state.values())]

    def holds(self, expected: list[Tensor]) -> bool:
        return all(torch.equal(now, then) for now, then in zip(self.tensors(), expected, strict=True))

    def capture(self) -> None:
        record = self.state.record()
        slot, start = self.arena.slot(CAPTURED), self.geometry.offset("record")
        slot[start : start + len(record)] = record
        self.record_bytes = len(record)
        assert self.state.copy_bulk(slot, self.geometry, cancelled=lambda: False)

    @property
    def extent(self) -> Extent:
        return Extent(record_bytes=self.record_bytes, unique_bytes=self.geometry.unique_bytes, replica_bytes=0)

    def restore(self, index: int) -> None:
        self.state.restore(self.arena.slot(index), self.geometry, self.extent)
        self.finish()

    def restore_while(self, arrives: Callable[[], bool]) -> int:
        """Restores like trainer/recovery/loading.py while the snapshot arrives. Returns how many bytes
        were loaded early."""
        slot = self.arena.slot(FETCHED)
        progress, record = Progress(slot), region(slot, self.geometry, self.extent, "record")
        before, restoring = progress.read("record").attempt, None
        while arrives():
            arrived = progress.read("record")
            if restoring is None and arrived.attempt != before and arrived.leading_bytes == self.record_bytes:
                restoring = self.state.begin_restore(bytes(record), slot, self.geometry, self.extent)
            if restoring is None or not restoring.load.advance(progress):
                time.sleep(_POLL_S)
        if restoring is None:
            restoring = self.state.begin_restore(bytes(record), slot, self.geometry, self.extent)
        early_bytes = self.state.finish_restore(restoring, progress)
        self.finish()
        return early_bytes

    def finish(self) -> None:
        if self.device.type != "cpu":
            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        self.state.release_slots()
        self._registrar.remove(0)
        self.arena.close()


class Agents:
    """The holder, and the newcomer's agent."""

    def __init__(self, geometry: Geometry, arena: Segment) -> None:
        shared = [json.dumps(structs.asdict(geometry))]
        environment = {**os.environ, SECRET_VARIABLE: secrets.token_hex(32)}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
        self._holder = subprocess.Popen([sys.executable, str(PROCESSES), "hold", *shared], **pipes)
        command = [sys.executable, str(PROCESSES), "fetch", *shared, str(arena.fd)]
        self._fetcher = subprocess.Popen(command, pass_fds=[arena.fd], **pipes)
        self._say(self._fetcher, self._holder.stdout.readline().strip())  # type: ignore[union-attr]

    def do(self, word: str) -> float:
        """Returns seconds, by the clock of the agent that does it."""
        self.begin(word)
        return self.end(word)

    def begin(self, word: str) -> None:
        if word == "plain":
            self._say(self._holder, "plain")
        self._say(self._fetcher, word)

    @property
    def is_busy(self) -> bool:
        """Returns whether the agent still works on what was begun."""
        return not select.select([self._fetcher.stdout], [], [], 0)[0]

    def end(self, word: str) -> float:
        answer = self._fetcher.stdout.readline()  # type: ignore[union-attr]
        if not answer:
            raise RuntimeError(f"the newcomer's agent ended at {word!r}")
        return float(json.loads(answer))

    def _say(self, process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()

    def close(self) -> None:
        for process in (self._fetcher, self._holder):
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.wait(30)
            process.stdout.close()


def timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def median(work: Callable[[], float], repeats: int) -> float:
    """Omits the first run, which warms up sockets and page tables."""
    work()
    return statistics.median(work() for _ in range(repeats))


def plain_copies(trainer: Trainer, repeats: int) -> tuple[float, float]:
    """Returns bytes per second from pinned memory to the device, and back."""
    size = min(_PLAIN_BYTES, trainer.geometry.unique_bytes)
    there = torch.zeros(size, dtype=torch.uint8, device=trainer.device)
    here = torch.zeros(size, dtype=torch.uint8, pin_memory=trainer.device.type != "cpu")

    def copy(target: Tensor, source: Tensor) -> float:
        return timed(lambda: (target.copy_(source, non_blocking=True), trainer.finish())[-1])

    return size / median(lambda: copy(there, here), repeats), size / median(lambda: copy(here, there), repeats)


def measure(size_gb: float, device: torch.device, repeats: int) -> dict[str, Any]:
    trainer = Trainer(size_gb * 1e9, device)
    agents = Agents(trainer.geometry, trainer.arena)
    try:
        return _measure(trainer, agents, repeats)
    finally:
        agents.close()
        trainer.close()


def _measure(trainer: Trainer, agents: Agents, repeats: int) -> dict[str, Any]:
    size = trainer.geometry.unique_bytes
    trainer.finish()
    capture_s = median(lambda: timed(trainer.capture), repeats)
    expected = [each.clone() for each in trainer.tensors()]
    agents.do(f"seal {trainer.record_bytes}")
    agents.do("push")
    torch._foreach_zero_(trainer.tensors())
    pull_s = median(lambda: agents.do("pull"), repeats)
    restore_s = timed(lambda: trainer.restore(FETCHED))
    same = trainer.holds(expected)
    restore_s = min(restore_s, median(lambda: timed(lambda: trainer.restore(FETCHED)), repeats))
    rollback_s = median(lambda: timed(lambda: trainer.restore(CAPTURED)), repeats)
    one_by_one_s = median(lambda: timed(lambda: (agents.do("pull"), trainer.restore(FETCHED))[-1]), repeats)
    torch._foreach_zero_(trainer.tensors())
    early_bytes = 0

    def whole() -> None:
        nonlocal early_bytes
        agents.begin("pull")
        early_bytes = trainer.restore_while(lambda: agents.is_busy)
        agents.end("pull")

    whole_s = median(lambda: timed(whole), repeats)
    same = same and trainer.holds(expected)
    sockets_s = median(lambda: agents.do("plain"), repeats)
    to_device, from_device = plain_copies(trainer, repeats)
    rates = {
        "holder_to_arena": size / pull_s,
        "plain_sockets": size / sockets_s,
        "arena_to_device": size / restore_s,
        "plain_to_device": to_device,
        "whole": size / whole_s,
        "one_by_one": size / one_by_one_s,
        "rollback": size / rollback_s,
        "capture": size / capture_s,
        "plain_from_device": from_device,
    }
    return {
        "bytes": size,
        "bit_identical": same,
        "whole_s": whole_s,
        "loaded_early": round(early_bytes / size, 3),
        **{f"{name}_gbps": round(rate / 1e9, 3) for name, rate in rates.items()},
        "holder_to_arena_ratio": round(sockets_s / pull_s, 3),
        "arena_to_device_ratio": round(size / restore_s / to_device, 3),
        "rollback_ratio": round(size / rollback_s / to_device, 3),
        "capture_ratio": round(size / capture_s / from_device, 3),
        "whole_against_slower_leg": round(max(sockets_s, size / to_device) / whole_s, 3),
    }


def those_that_fit(sizes_gb: Sequence[float], device: torch.device) -> list[float]:
    """Returns the sizes that fit: three slots are in host memory, and on the CPU the state and its reference too."""
    copies = 3 if device.type == "cuda" else 5
    room_gb = 0.8 * room().bytes / 1e9
    fit = [size for size in sizes_gb if copies * size < room_gb]
    for size in sorted(set(sizes_gb) - set(fit)):
        print(f"skipping {size:g} GB: {copies} times that is more than the {room_gb:.1f} GB available", file=sys.stderr)
    return fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--sizes", type=float, nargs="+", default=SIZES_GB, metavar="GB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    found = {}
    for size_gb in those_that_fit(args.sizes, device):
        print(f"{size_gb:g} GB", file=sys.stderr, flush=True)
        found[f"{size_gb:g} GB"] = measure(size_gb, device, args.repeats)
    give_out({"device": args.device, "sizes": found}, args.json)


if __name__ == "__main__":
    main()
