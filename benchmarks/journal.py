"""Measures the cost of `job.log` of four floats per step: time of the script's thread, bytes of the boundary record.

It runs in one process with the parts of a trainer: the values of the step, the entries that wait (`--waiting` is how
many steps are not final yet), and a boundary record of a small model with AdamW. Results are medians over `--repeats`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from output import give_out
from torch import nn

from deadpool.journal import Jsonl, Run
from deadpool.journal.entry import Undelivered
from deadpool.journal.step_values import StepValues, finished
from deadpool.snapshot.state.state import ProtectedState


class Companion:
    """Stands for the journal of a trainer, whose state is a part of the boundary record."""

    def __init__(self) -> None:
        self.waiting = Undelivered(lambda dropped: None)

    def state_dict(self) -> dict[str, Any]:
        return {"run": "0123456789ab", "actions": {}, **self.waiting.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.waiting.load_state_dict(state)


def median_us(act: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return round(1e6 * statistics.median(times), 2)


def make_state(companion: Companion | None) -> ProtectedState:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    companions = {"journal": companion} if companion is not None else {}
    return ProtectedState(
        {"model": model, "optimizer": optimizer}, replicas={}, rank=0, node_of=lambda _: 0, companions=companions
    )


def log_step(book: StepValues, waiting: Undelivered, step: int, values: dict[str, Any]) -> None:
    book.enter_step(step)
    book.log(step, values)
    entry = finished(book.leave_step())
    assert entry is not None
    waiting.add(entry)


def log_steps(waiting: Undelivered, count: int, values: dict[str, Any]) -> None:
    book = StepValues()
    for step in range(count):
        log_step(book, waiting, step, values)


def measure_calls(repeats: int, values: dict[str, Any]) -> dict[str, float]:
    book, waiting = StepValues(), Undelivered(lambda dropped: None)
    book.enter_step(0)
    call_us = median_us(lambda: book.log(0, values), repeats)
    steps = iter(range(repeats))
    step_us = median_us(lambda: log_step(book, waiting, next(steps), values), repeats)
    return {"log_call_us": call_us, "log_and_complete_us": step_us}


def measure_record(repeats: int, waiting: int, values: dict[str, Any]) -> dict[str, float]:
    without, quiet, logging = None, Companion(), Companion()
    log_steps(logging.waiting, waiting, values)
    states = [make_state(companion) for companion in (without, quiet, logging)]
    sizes = [len(state.record()) for state in states]
    times: list[list[float]] = [[], [], []]
    for _ in range(repeats):  # alternates, because the machine's speed changes
        for state, found in zip(states, times, strict=True):
            found.append(median_us(state.record, 5))
    medians = [round(statistics.median(found), 1) for found in times]
    return {
        "record_us": medians[0],
        "journal_never_used_us": round(medians[1] - medians[0], 1),
        "entries_waiting_us": round(medians[2] - medians[0], 1),
        "record_bytes": sizes[0],
        "journal_never_used_bytes": sizes[1] - sizes[0],
        "bytes_per_waiting_entry": (sizes[2] - sizes[1]) / waiting,
    }


def measure_delivery(repeats: int, values: dict[str, Any]) -> dict[str, float]:
    """Measures the delivery thread: one line with fsync."""
    waiting = Undelivered(lambda dropped: None)
    log_steps(waiting, repeats, values)
    entries = iter([[entry] for entry in waiting.final(0, repeats)])
    with tempfile.TemporaryDirectory() as folder:
        sink = Jsonl(Path(folder) / "a.jsonl")
        sink.open(Run("0123456789ab", 0))
        line_us = median_us(lambda: sink.write(next(entries)), repeats)
        sink.close()
    return {"line_with_fsync_us": line_us}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--waiting", type=int, default=2, help="steps that are not final, usually one or two")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    values = {"loss": 2.718281828459045, "grad_norm": 0.5772156649015329, "lr": 3e-4, "tokens": 1e9 / 3}
    summary = {
        **measure_calls(args.repeats * 10, values),
        **measure_record(args.repeats, args.waiting, values),
        **measure_delivery(args.repeats, values),
    }
    give_out({"waiting": args.waiting, **summary}, args.json)


if __name__ == "__main__":
    main()
