"""Compares what to do with a snapshot that takes longer to copy than the step in which it is taken.

    python benchmarks/progressive.py --device cuda --json out/progressive.json

One rank trains a GPT of --parameters in bf16 with fp32 master weights and moments, whose steps take --length times as
long as a plain copy of the whole state to the host. The same capture as in a trainer (trainer/capture/capture.py)
takes a snapshot every --every steps, without agents:

    waits       the optimizer waits for the copy on the device
    given-up    the overhead budget of 0.1 % decides: the copy is given up where the optimizer would wait for longer
    set-aside   what cannot be copied before the optimizer is cloned on the device, within --set-aside-gb

Each way takes turns with stretches without snapshots. `cost_s` is what a capture adds to the steps, all in all, and
`interval` is how many steps would have to lie between two captures so that this is 0.1 % of the step time. Versions are
compared with a clone of the state, to the bit, in a stretch that is not timed. On a CPU nothing can be set aside, and
`clone_gb_s` and `copy_gb_s` say why: to clone host memory takes as long as to copy it into a slot.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from output import give_out
from solo_model import Marks, Solo, measure, size_for

from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import SlotRef
from deadpool.protocol.trainer_core import Capture
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.copying.copying import make_lane
from deadpool.snapshot.copying.cuda import runtime
from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer.capture.capture import Capturer
from deadpool.trainer.capture.capture_tasks import Budget, CaptureTarget

SLOTS = 2
BUDGET = 0.001
GENERATION = Generation(1, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--parameters", type=float, help="size of the model; by default 1.4e9 on cuda, 2e6 on the CPU")
    parser.add_argument("--length", type=float, default=0.5, help="of a step, in plain copies of the whole state")
    parser.add_argument("--every", type=int, default=4, help="steps from one snapshot to the next")
    parser.add_argument("--captures", type=int, default=5, help="in each stretch")
    parser.add_argument("--stretches", type=int, default=3, help="of each way")
    parser.add_argument("--set-aside-gb", type=float, default=40.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.parameters = args.parameters or (1.4e9 if args.device == "cuda" else 2e6)
    torch.set_num_threads(1)
    give_out(compare(args), args.json)


def compare(args: argparse.Namespace) -> dict[str, Any]:
    device = torch.device(args.device, 0) if args.device == "cuda" else torch.device("cpu")
    solo = Solo(size_for(args.parameters), device)
    speeds = measure(solo)
    copy_s = solo.state_bytes / speeds.plain_bytes_per_s
    count = speeds.micro_batches(args.length * copy_s)
    found = {"state_gb": solo.state_bytes / 1e9, "plain_copy_s": copy_s, "micro_batches": count}
    found |= {"ways": [one_way(way, solo, count, args) for way in ("waits", "given-up", "set-aside")]}
    return found | clone_against_copy(device)


def one_way(way: str, solo: Solo, count: int, args: argparse.Namespace) -> dict[str, Any]:
    limit_bytes = int(args.set_aside_gb * 1e9) if way == "set-aside" else 0
    with Trial(way, solo, count, limit_bytes) as trial:
        trial.run(args.every, 3)  # speeds and windows become known, memory is allocated
        trial.forget()
        protected, plain = [], []
        for _ in range(args.stretches):
            protected.append(trial.run(args.every, args.captures))
            plain.append(trial.run(None, args.every * args.captures))
        captured, missed = len(trial.captured), len(trial.missed)
        exact = trial.is_exact()
        step_s = statistics.median(plain)
        steps = args.stretches * args.captures * args.every
        cost_s = (statistics.fmean(protected) - statistics.fmean(plain)) * steps / (args.stretches * args.captures)
        return {
            "way": way,
            "captured": captured,
            "missed": missed,
            "exact": exact,
            "plain_step_s": plain,
            "step_s": protected,
            "cost_s": cost_s,
            "stall_s": statistics.median(trial.stalls) if trial.stalls else None,
            "copy_s": statistics.median(trial.copies) if trial.copies else None,
            "set_aside_gb": max(trial.asides, default=0) / 1e9,
            "interval": interval(cost_s, step_s) if captured else None,
            "interval_by_stall": interval(statistics.median(trial.stalls), step_s) if trial.stalls else None,
            "would_have_waited_s": statistics.median(trial.missed) if trial.missed else None,
        }


def interval(cost_s: float, step_s: float) -> int:
    """As the coordinator chooses it: the next power of two."""
    return int(2 ** max(0, math.ceil(math.log2(max(1e-9, cost_s) / (BUDGET * step_s)))))


class NoFaults:
    """The part of InjectionTriggers that a capture calls."""

    def capturing(self, number: int, cancelled: Any) -> Any:
        return cancelled

    def captured(self, number: int) -> None:
        return None


class Trial:
    """A loop as that of a trainer: boundary, snapshot, forward and backward, settle, optimizer."""

    def __init__(self, way: str, solo: Solo, count: int, limit_bytes: int) -> None:
        self._way, self._solo, self._count = way, solo, count
        lane = functools.partial(make_lane, aside_limit_bytes=limit_bytes)
        objects = {"own": solo.own, "optimizer": solo.optimizer}
        self.state = ProtectedState(objects, replicas={}, rank=0, node_of=int, make_lane=lane)
        self.budget = Budget(BUDGET if way == "given-up" else 0.0)
        self._number, self._observed = 0, 0
        self.capturer = Capturer(
            self.state,
            NoFaults(),  # type: ignore[arg-type]
            allowance_s=self.budget.allowance_s,
            on_observed=self._on_observed,
            on_copied=lambda capture, *_: self.captured.append(capture.version.number),
            on_given_up=lambda capture, cause, reason, stall_s: self.missed.append(stall_s or 0.0),
            on_error=lambda error: print(error),
            on_set_aside=lambda _, nbytes: self.asides.append(nbytes),
        )
        self.forget()

    def forget(self) -> None:
        self.captured: list[int] = []
        self.missed: list[float] = []
        self.asides: list[int] = []
        self.stalls: list[float] = []
        self.copies: list[float] = []

    def __enter__(self) -> Trial:
        self.geometry = self.state.measure()
        self._segment = Segment.create("progressive", self.geometry, SLOTS)
        self._segment.prefault()
        self._registered = self._register()
        self._registered.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.capturer.cancel()
        self.capturer.close()
        self.state.drain()
        self.state.release_slots()
        self._registered.__exit__(None, None, None)
        self._segment.close()

    @contextmanager
    def _register(self) -> Iterator[None]:
        found = runtime() if self._solo.device.type == "cuda" else None
        address = int(np.frombuffer(self._segment.view(), np.uint8).ctypes.data)
        if found is not None:
            found.register(address, self._segment.total_bytes)
        yield
        if found is not None:
            found.unregister(address)

    def run(self, every: int | None, captures: int) -> float:
        """Runs so many captures, or so many steps without any. Returns the mean time of a step."""
        steps = captures if every is None else every * captures
        marks = Marks(self._solo.device)
        marks.finish()
        begin = marks.set()
        for step in range(steps):
            if every is not None and step % every == 0:
                self._begin_capture(step // every)
            self._one_step()
        end = marks.set()
        marks.finish()
        self.capturer.finish()
        self._read_costs()
        return marks.between_s(begin, end) / steps

    def _begin_capture(self, index: int) -> None:
        record = self.state.record()
        slot = SlotRef(segment=1, index=index % SLOTS)
        self._record, self._slot = record, self._segment.slot(slot.index)
        version = Version(GENERATION, self._number)
        capture = Capture(generation=GENERATION, version=version, slot=slot)
        self.capturer.begin(CaptureTarget(capture, self._slot, self.geometry, record))

    def _one_step(self) -> None:
        began = time.monotonic()
        self._solo.train_step(self._count)
        self.capturer.settle()
        self._solo.update()
        while self._observed < self._number:  # the host is at most one step ahead
            time.sleep(0.0002)
        self._number += 1
        self.capturer.reached(Version(GENERATION, self._number), self.state.mark())
        self.budget.earn(time.monotonic() - began)
        self._read_costs()

    def _on_observed(self, version: Version) -> None:
        self._observed = version.number

    def _read_costs(self) -> None:
        for cost in self.capturer.costs():
            self.budget.spend(cost.figures.stall_s)
            if not cost.given_up:
                self.stalls.append(cost.figures.stall_s)
                self.copies.append(cost.figures.copy_s)

    def is_exact(self) -> bool | None:
        """Captures one more version beside training, and compares it with clones of its boundary. None: it was given
        up."""
        captured = len(self.captured)
        clones = {name: tensor.clone() for name, tensor in self._solo.state().items()}
        self._begin_capture(0)
        self._one_step()
        self._one_step()
        self.capturer.finish()
        if len(self.captured) == captured:
            return None
        extent = self.state.extent(self._record)
        self.state.restore(self._slot, self.geometry, extent)
        same = {name: _bits(tensor) for name, tensor in self._solo.state().items()}
        return all(torch.equal(same[name], _bits(clone)) for name, clone in clones.items())


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32)


def clone_against_copy(device: torch.device) -> dict[str, Any]:
    """The rates of a clone on the device and of a copy into a slot, for 256 MB."""
    if device.type == "cuda":
        return {}
    source, clone, slot = (np.ones(256 << 20, np.uint8) for _ in range(3))
    found = {}
    for name, target in (("clone_gb_s", clone), ("copy_gb_s", slot)):
        times = []
        for _ in range(5):
            began = time.perf_counter()
            np.copyto(target, source)
            times.append(time.perf_counter() - began)
        found[name] = source.nbytes / min(times) / 1e9
    return found


if __name__ == "__main__":
    main()
