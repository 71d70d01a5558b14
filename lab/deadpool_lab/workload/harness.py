"""Runs the workload as a job, with a random delay behind every wait if delays are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deadpool.demo.trial import LIMIT_S, Trial
from deadpool_lab.workload.jitter import pause

__all__ = ["LIMIT_S", "SCRIPT", "WorkloadTrial"]

SCRIPT = Path(__file__).with_name("train.py")


@dataclass
class WorkloadTrial(Trial):
    """One job that trains the workload, to which `script_arguments` go."""

    script: Path = SCRIPT

    def await_true(self, ready: Callable[[], bool], what: str, timeout_s: float = LIMIT_S) -> None:
        super().await_true(ready, what, timeout_s)
        pause(what)
