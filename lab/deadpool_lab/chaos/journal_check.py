"""Whether the journal of a job under faults has every step of every rank once, in order, with its loss."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from deadpool.demo.results import Results


def journal_problems(folder: Path, results: Results) -> list[str]:
    """Empty if each rank's journal has each step exactly once, in order, with the loss that the script wrote when it
    computed that step for the last time."""
    return [text for rank in sorted(results.losses) for text in _problems(folder, rank, results.losses[rank])]


def _problems(folder: Path, rank: int, losses: dict[int, str]) -> Iterator[str]:
    """Reads the lines of the file: `deadpool show journal` would hide what is there twice."""
    path = folder / f"rank-{rank:05d}.jsonl"
    text = path.read_text() if path.exists() else ""
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    steps = [line["step"] for line in lines]
    if steps != sorted(losses):
        missing, twice = sorted(set(losses) - set(steps)), sorted({step for step in steps if steps.count(step) > 1})
        yield f"journal of rank {rank}: steps {missing} are missing, {twice} are there twice, or they are out of order"
    wrong = [line["step"] for line in lines if line["values"]["loss"].hex() != losses.get(line["step"])]
    if wrong:
        yield f"journal of rank {rank}: losses differ at steps {wrong}"
