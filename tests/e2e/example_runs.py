"""Runs the examples as a user does, and reads what they print: losses of steps, and the final state of each rank."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deadpool.config.job_config import JobConfig
from deadpool.control.launch.launcher import LocalJob, running
from deadpool.control.launch.run_dir import RunDir
from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.errors import JobFailed
from deadpool.events.event import read_events
from deadpool_lab.workload.run import LIMIT_S

EXAMPLES = Path(__file__).parents[2] / "examples"
EVERY_STEP: dict[str, Any] = {"nodes": 2, "spares": 1, "overhead_budget": 0.0}
_STEP = re.compile(r"((?:rank \d+ )?step \d+) (loss [-+.\de]+(?: (?!rank|step)[a-z]+ [-+.\de]+)*)")
_STATE = re.compile(r"(rank \d+) ends with state ([0-9a-f]{32})")


def said(text: str) -> dict[str, str]:
    """What was printed of each step (of one done again the last) and the final state of each rank.

    Wherever in a line: under torchrun the ranks write into the same pipe, and a line may come before another one's end.
    """
    return dict(_STEP.findall(text)) | dict(_STATE.findall(text))


class ExampleJob:
    """An example under DeadPool, on two nodes and a spare unless told otherwise."""

    def __init__(self, folder: Path, fork_server: SharedForkServer, *script: str, **settings: Any) -> None:
        config = JobConfig(**{**EVERY_STEP, **settings}).checked()
        self.job = LocalJob(config, RunDir.create(folder), [*script], quiet=True, fork_server=fork_server)

    def logged(self) -> str:
        logs = sorted(path for path in self.job.run_dir.logs.iterdir() if path.is_file())
        return "\n".join(path.read_text(errors="replace") for path in logs)

    def run(self, during: Callable[[], None] | None = None, timeout_s: float = LIMIT_S) -> dict[str, str]:
        """To its end; `during` acts on the running job. Returns what `said` reads of all that was printed."""
        with running(self.job):
            if during is not None:
                during()
            code = self.job.wait(timeout_s)
        if code:
            raise JobFailed(f"the job ended with code {code}:\n{self.logged()}")
        return said(self.logged())

    def events(self, what: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.job.run_dir.events) if event["what"] == what]
