"""Reads the results of a run of the workload, and compares two runs bit for bit."""

from __future__ import annotations

import itertools
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """`ended` is wall-clock time; `cpu_s` is the CPU time that the trainer's process had used by then."""

    step: int
    ended: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Per rank: the loss of each step (the last one if the step was redone), all steps in order, the final digest."""

    losses: dict[int, dict[int, str]]
    steps: dict[int, list[StepTimes]]
    digests: dict[int, str]

    @classmethod
    def read(cls, folder: Path) -> Results:
        losses: dict[int, dict[int, str]] = {}
        done: dict[int, list[StepTimes]] = {}
        digests: dict[int, str] = {}
        for path in sorted(folder.glob("rank*.jsonl")):
            rank = int(path.stem.removeprefix("rank"))
            lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
            steps = [line for line in lines if "step" in line]
            losses[rank] = {line["step"]: line["loss"] for line in steps}
            done[rank] = [StepTimes(step=s["step"], ended=s["ended"], cpu_s=s["cpu_s"]) for s in steps]
            for line in lines:
                if "digest" in line:
                    digests[rank] = line["digest"]
        return cls(losses=losses, steps=done, digests=digests)

    def newest_step(self) -> int:
        """Returns the newest step that every rank has done, or -1."""
        newest = [max(losses, default=-1) for losses in self.losses.values()]
        return min(newest, default=-1)

    def median_step_s(self) -> float:
        """Returns the median step time of rank 0, from the end of one step to the end of the next."""
        ends = [each.ended for each in self.steps[0]]
        return statistics.median(later - earlier for earlier, later in itertools.pairwise(ends))

    def steps_done_again(self) -> int:
        """Returns how many steps were completed more than once, at the rank with the most of them."""
        return max(len(steps) - len({each.step for each in steps}) for steps in self.steps.values())


def differences(one: Results, other: Results) -> list[str]:
    """Returns the differences as text. The list is empty if all losses and final states are bit-identical."""
    found = [_compare("losses", rank, one.losses.get(rank), other.losses.get(rank)) for rank in _ranks(one, other)]
    found += [
        _compare("final state", rank, one.digests.get(rank), other.digests.get(rank)) for rank in _ranks(one, other)
    ]
    return [text for text in found if text is not None]


def _ranks(one: Results, other: Results) -> list[int]:
    return sorted(set(one.losses) | set(other.losses))


def _compare(what: str, rank: int, one: Any, other: Any) -> str | None:
    if one is None or other is None:
        return f"{what} of rank {rank}: missing"
    if isinstance(one, dict) and isinstance(other, dict):
        wrong = sorted(step for step in one.keys() | other.keys() if one.get(step) != other.get(step))
        return f"{what} of rank {rank} differ at steps {wrong}" if wrong else None
    return None if one == other else f"{what} of rank {rank} differs"
