"""The training script of overhead.py, for `deadpool run`: rank 0 trains, and every other rank only does the same steps.

Rank 0 goes through chapters, each with steps of another length, and switches protection off and on between stretches.
It writes one line per stretch into --out. Each step has one tiny all-reduce over gloo, which keeps ranks together and
tells the others when rank 0 is done.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from solo_model import Marks, Solo, Speeds, measure, size_for
from step_trace import traced
from torch import nn

import deadpool

STEP_LIMIT = 1_000_000  # never reached: rank 0 ends the job
WARM_STEPS = 8
_TRACES = 3
REST_S = 6.0
WARM_S = 60.0  # until the first snapshot is committed: its memory must be allocated and registered


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """`length` is that of a step, in plain copies of the whole state; `sequences` are in a micro-batch."""

    name: str
    length: float
    sequences: int
    stretch: int
    stretches: int

    @classmethod
    def parse(cls, text: str) -> Chapter:
        name, length, *numbers = text.split(":")
        sequences, stretch, stretches = map(int, numbers)
        return cls(name=name, length=float(length), sequences=sequences, stretch=stretch, stretches=stretches)


class Leader:
    """Rank 0, which trains, switches protection, and measures."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.solo = Solo(size_for(args.parameters), device, args.share)
        self._marks = Marks(device)
        self._chapters: list[Chapter] = args.chapter
        self._speeds = {chapter.sequences: self._measure(chapter.sequences) for chapter in self._chapters}
        plain_bytes_per_s = max(speeds.plain_bytes_per_s for speeds in self._speeds.values())
        self._whole_copy_s = self.solo.state_bytes / args.share / plain_bytes_per_s
        self._out, self._traced_steps = args.out, args.trace
        self._note("speeds.json", self._describe(args, self._speeds[self._chapters[0].sequences]))

    def _measure(self, sequences: int) -> Speeds:
        self.solo.sequences = sequences
        return measure(self.solo)

    def protect(self, pool: Any) -> Any:
        return pool.protect(own=self.solo.own, optimizer=self.solo.optimizer)

    def play(self, job: Any) -> Iterator[int]:
        """Yields the number of micro-batches of the next step, and ends after all chapters."""
        for chapter in self._chapters:
            self.solo.sequences = chapter.sequences
            count = self._speeds[chapter.sequences].micro_batches(chapter.length * self._whole_copy_s)
            yield from self._warm_up(job, count)
            for stretch in range(chapter.stretches):
                job.enabled = stretch % 2 == 0
                if not job.enabled:
                    yield from self._rest(job, count)
                yield from self._time(chapter, count, protected=job.enabled)
            job.enabled = True
            yield from self._trace(chapter, job, count)

    def do_step(self, micro_batches: int) -> None:
        self.solo.train_step(micro_batches)
        self.solo.update()

    def _warm_up(self, job: Any, count: int) -> Iterator[int]:
        began = job.number
        yield from self._until_safe(job, count, WARM_S)
        while job.number < began + WARM_STEPS:
            yield count

    def _rest(self, job: Any, count: int) -> Iterator[int]:
        """Waits until the last capture has reached its holder, which belongs to the protected stretch."""
        yield from self._until_safe(job, count, REST_S)

    def _until_safe(self, job: Any, count: int, timeout_s: float) -> Iterator[int]:
        """Does steps until the version reached by now is final, or until the timeout."""
        safe: list[bool] = []
        deadline = time.monotonic() + timeout_s
        job.on_final(job.number - 1, lambda: safe.append(True))
        while not safe and time.monotonic() < deadline:
            yield count

    def _time(self, chapter: Chapter, count: int, *, protected: bool) -> Iterator[int]:
        """Measures a stretch without its first step, which includes the switch."""
        yield count
        marks, began = [self._marks.set()], time.perf_counter()
        for _ in range(chapter.stretch):
            yield count
            marks.append(self._marks.set())
        self._marks.finish()
        wall_s = (time.perf_counter() - began) / chapter.stretch
        steps_s = [self._marks.between_s(*pair) for pair in itertools.pairwise(marks)]
        line = {"chapter": chapter.name, "protected": protected, "steps_s": steps_s, "wall_s": wall_s}
        self._note("stretches.jsonl", line | {"micro_batches": count, "ended": time.time()})

    def _trace(self, chapter: Chapter, job: Any, count: int) -> Iterator[int]:
        """Traces some more steps, which are not measured: the trace itself costs time."""
        for protected in (True, False) * _TRACES if self._traced_steps else ():
            job.enabled = protected
            if not protected:
                yield from self._rest(job, count)
            yield count
            with traced(self.solo.device) as trace:
                for _ in range(self._traced_steps):
                    yield count
            line = {"chapter": chapter.name, "protected": protected, **trace.per_step_ms(self._traced_steps)}
            self._note("traces.jsonl", line)
        job.enabled = True

    def _describe(self, args: argparse.Namespace, speeds: Speeds) -> dict[str, Any]:
        return {
            "parameters": sum(each.numel() for each in self.solo.model.parameters()),
            "state_bytes": self.solo.state_bytes,
            "share": args.share,
            "micro_batch_s": speeds.micro_batch_s,
            "update_s": speeds.update_s,
            "plain_bytes_per_s": speeds.plain_bytes_per_s,
        }

    def _note(self, name: str, values: dict[str, Any]) -> None:
        self._out.mkdir(parents=True, exist_ok=True)
        with (self._out / name).open("a") as file:
            file.write(json.dumps(values) + "\n")


class Follower:
    """Every other rank. It has almost no state, and rank 0 never waits for it."""

    def __init__(self) -> None:
        self._model = nn.Linear(1, 1)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.0)

    def protect(self, pool: Any) -> Any:
        return pool.protect(own=self._model, optimizer=self._optimizer)

    def play(self, job: Any) -> Iterator[int]:
        while True:
            yield 0

    def do_step(self, micro_batches: int) -> None:
        self._optimizer.step()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--parameters", type=float, default=2e6)
    parser.add_argument("--share", type=float, default=1.0, help="share of the state that is protected")
    parser.add_argument(
        "--chapter", type=Chapter.parse, action="append", metavar="NAME:LENGTH:SEQUENCES:STRETCH:STRETCHES"
    )
    parser.add_argument("--trace", type=int, default=0, metavar="STEPS", help="trace so many steps afterwards")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    pool = deadpool.join(backend="gloo")
    player = Leader(args, torch.device(args.device)) if pool.rank == 0 else Follower()
    job = player.protect(pool)
    play, over = player.play(job), torch.zeros(1)
    for step in job.steps(STEP_LIMIT):
        micro_batches = next(play, None)
        with step:
            over.fill_(micro_batches is None)
            dist.all_reduce(over, op=dist.ReduceOp.MAX)
            player.do_step(micro_batches or 0)
        if over.item():
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
